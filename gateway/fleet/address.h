/* address: places that the configuration names: a target's, a secret's file. Thread: any. */
#ifndef GATEWAY_FLEET_ADDRESS_H
#define GATEWAY_FLEET_ADDRESS_H

#include "base/buf.h"

#include <stdbool.h>

/* "http://h:p", "h:p", "[::1]:p", "unix:/p" → the form base/net/http.h takes (buf), or -EINVAL. */
int gw_parse_address(const char *s, struct buf *out);
/* A regular file that others than its owner may read or write: no place for a secret. */
bool gw_secret_is_exposed(const char *path);

#endif
