/* Loading the model that the options name, for the subcommands that run one in this process. */
#include "tools/bench/device.h"

#include "base/hub/hub.h"
#include "fusor/model/shape.h"
#include "kernels/gpu.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static json_t *make_meta(const struct bench *b)
{
    const struct kn_info *dev = kn_info(fus_core_dev(b->core));
    const struct model_cfg *c = b->cfg;
    json_t *meta = bench_meta(), *rates = json_array();
    const struct kn_gemm_rate *rate = dev->rate;
    for (size_t i = 0; i < dev->n_rates; i++)
        json_array_append_new(rates, json_pack("{s:s, s:f, s:b}", "name", rate[i].name, "gflops",
                                               rate[i].gflops, "chosen", rate[i].chosen));
    json_object_update_new(
        meta,
        json_pack("{s:s, s:s, s:i, s:s, s:s, s:i, s:s, s:s, s:{s:i, s:i, s:i, s:i, s:i, s:i, s:i},"
                  " s:o}",
                  "device", dev->device, "isa", dev->isa, "threads", (int)dev->n_threads, "model",
                  c->name, "gemm", dev->gemm, "layers", (int)c->L, "kv_dtype",
                  kn_dtype_name(b->kv_dtype), "kv_pages_dtype", kn_dtype_name(dev->kv), "dims", "L",
                  (int)c->L, "D", (int)c->D, "H", (int)c->H, "G", (int)c->G, "K", (int)c->K, "F",
                  (int)c->F, "V", (int)c->V, "gemm_candidates", rates));
    return meta;
}

static void loading(void *ctx, double share)
{
    (void)ctx;
    if (isatty(STDERR_FILENO))
        (void)fprintf(stderr, "\rloading %3.0f %%%s", share * 100, share >= 1 ? "\n" : "");
}

static int open_profile(struct bench *b, const struct opts *opts, struct err *err)
{
    char fingerprint[FUS_FINGERPRINT_BYTES];
    int r = 0;
    fus_profile_fingerprint(b->cfg, fingerprint);
    fus_profile_default(b->cfg, &b->profile);
    if (opt_given(opts, "profile"))
        r = fus_profile_read(opt_str(opts, "profile"), b->cfg, fingerprint, &b->profile, err);
    b->build_sink = b->profile.sink_tokens && opt_bool(opts, "sink") ? b->sink : -1;
    return r;
}

/* By its path or its name on the hub. */
static int find_model(const char *model, char *ret, size_t cap, struct err *err)
{
    struct buf path = BUF_INIT;
    int r = hub_find(model, &path, err);
    if (r == 0 && path.len >= cap) r = err_set(err, -EINVAL, "--model is too long");
    if (r == 0) (void)snprintf(ret, cap, "%s", buf_cstr(&path));
    buf_fini(&path);
    return r;
}

int bench_model_path(const struct opts *opts, char *ret, size_t cap, struct err *err)
{
    const bool shape = opt_given(opts, "shape"); /* a model may be in the environment as well */
    if (!shape && !opt_given(opts, "model"))
        return err_set(err, -EINVAL, "--model PATH or --shape NAME is needed");
    if (!shape) return find_model(opt_str(opts, "model"), ret, cap, err);
    const int n = snprintf(ret, cap, "%s%s", SHAPE_PREFIX, opt_str(opts, "shape"));
    return n < 0 || (size_t)n >= cap ? err_set(err, -EINVAL, "--shape is too long") : 0;
}

static int open_model(struct bench *b, const struct opts *opts, struct err *err)
{
    struct err no_chat = {0};
    char path[PATH_MAX];
    int r = bench_model_path(opts, path, sizeof path, err);
    if (r == 0) r = model_open(path, &b->model, err);
    if (r < 0) return r;
    b->cfg = model_config(b->model);
    r = tok_open(b->model, &b->tok, err);
    if (r < 0) return r;
    if (chat_open(tok_chat_template(b->tok), NULL, &b->chat, &no_chat) < 0) b->chat = NULL;
    struct fus_core_opts o = {.dev = bench_device_opts(opts),
                              .ctx_max = (unsigned)opt_int(opts, "ctx"),
                              .progress = loading};
    o.dev.allow_bf16 = b->cfg->file_bf16_or_less;
    r = fus_core_create(b->model, &o, &b->core, err);
    if (r < 0) return r;
    b->sink = chat_sink(b->chat, b->tok);
    b->kv_dtype = kn_dtype_parse(opt_str(opts, "kv-dtype"), b->cfg->file_f32 ? KN_F32 : KN_F16);
    r = open_profile(b, opts, err);
    if (r < 0) return r;
    if (!kn_info(fus_core_dev(b->core))->is_host)
        r = kn_dev_gpu(fus_core_dev(b->core), &b->gpu, err);
    if (r == 0) r = bench_store_create(b, opt_size(opts, "ram"), NULL, &b->store, err);
    if (r < 0) return r;
    b->meta = make_meta(b);
    b->rows = json_array();
    return b->meta && b->rows ? 0 : err_set(err, -ENOMEM, "out of memory");
}

static void close_model(struct bench *b)
{
    json_decref(b->meta);
    json_decref(b->rows);
    store_destroy(b->store);
    gpu_close(b->gpu);
    fus_core_destroy(b->core);
    chat_close(b->chat);
    tok_close(b->tok);
    model_close(b->model);
}

int bench_run_on_model(const struct opts *opts,
                       int (*run)(struct bench *b, const struct opts *opts, struct err *err),
                       struct err *err)
{
    struct bench b = {0};
    int r = open_model(&b, opts, err);
    if (r == 0) r = run(&b, opts, err);
    if (r == 0)
        json_object_set_new(b.meta, "gemm_refused",
                            json_integer((json_int_t)kn_gemm_refusals(fus_core_dev(b.core)).count));
    if (r == 0) r = bench_write_json(opts, b.meta, b.rows, err);
    close_model(&b);
    return r;
}
