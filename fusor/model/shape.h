/* shape: configurations of published models by name, for models with random weights.
 *
 * "mistral-7b" is that model's configuration, "mistral-7b:layers=4" the same with fewer layers. For
 * benchmarks alone: whatever is measured of a model with random weights says how long it takes and
 * nothing about what it answers. model_open("shape:NAME") makes a model of one. Thread: any. */
#ifndef FUSOR_MODEL_SHAPE_H
#define FUSOR_MODEL_SHAPE_H

#include "fusor/model/model.h"

#define SHAPE_PREFIX "shape:" /* of a model's path */

/* -EINVAL: unknown name or setting; err lists the known ones. The fingerprint is left 0. */
int shape_parse(const char *text, struct model_cfg *ret, struct err *err);

#endif
