#include "base/buf.h"
#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/opt.h"
#include "base/sandbox.h"
#include "gateway/front/keys.h"
#include "gateway/process/config.h"
#include "gateway/process/pull.h"
#include "gateway/process/run.h"
#include "gateway/process/server.h"

#include <errno.h>
#include <malloc.h>
#include <stdio.h>
#include <string.h>

enum { KEEP_BLOCK_BYTES = 4 << 20, KEEP_TOP_BYTES = 16 << 20 };

static int hash_key(struct buf *text)
{
    char line[4096];
    if (!fgets(line, sizeof line, stdin)) line[0] = '\0';
    line[strcspn(line, "\r\n")] = '\0';
    int r = gw_key_hash(line, text);
    explicit_bzero(line, sizeof line);
    if (r < 0) {
        (void)fprintf(stderr, "kvblend: %s\n",
                      r == -EINVAL ? "expected a key without spaces on standard input"
                                   : err_name(r));
        return 1;
    }
    (void)printf("%s\n", buf_cstr(text));
    return 0;
}

/* The keys are part of the configuration. Takes c. */
static int check_keys(struct gw_config *c)
{
    struct gw_settings *s = NULL;
    struct err err = {0};
    int r = gw_settings_create(c, NULL, &s, &err);
    gw_settings_unref(s);
    if (r < 0) (void)fprintf(stderr, "%s\n", err.msg[0] ? err.msg : err_name(r));
    if (r == 0) (void)printf("configuration ok\n");
    return r < 0 ? 2 : 0;
}

/* A reload reads the command line again: it gets a copy, and who lists processes sees no secret. */
static int run_gateway(struct gw_config *c, int argc, char **argv, char **envp)
{
    struct arena a;
    arena_init(&a);
    char **copy = arena_alloc(&a, ((size_t)argc + 1) * sizeof *copy);
    bool ok = copy != NULL;
    for (int i = 0; i < argc && ok; i++)
        ok = (copy[i] = arena_strndup(&a, argv[i], strlen(argv[i]))) != NULL;
    opts_hide_argv(c->opts, argc, argv);
    int status = 1;
    if (ok) {
        status = gw_run(c, argc, copy, envp);
    } else {
        (void)fprintf(stderr, "kvblend: out of memory\n");
        gw_config_free(c);
    }
    arena_fini(&a);
    return status;
}

/* Bodies of a megabyte come and go all the time: their pages are kept. By default the heap's top is
 * given back and faulted in again with every prompt, which costs more than copying it. */
static void keep_pages(void)
{
#ifdef __GLIBC__
    (void)mallopt(M_MMAP_THRESHOLD, KEEP_BLOCK_BYTES);
    (void)mallopt(M_TRIM_THRESHOLD, KEEP_TOP_BYTES);
#endif
}

/* Lines of the configuration's reader, in the form of the log. */
static void tell_warnings(const char *lines)
{
    static const char prefix[] = "warning: ";
    for (const char *p = lines, *end; (end = strchr(p, '\n')); p = end + 1) {
        if (strncmp(p, prefix, sizeof prefix - 1) == 0) p += sizeof prefix - 1;
        log_event(LOG_WARN, "config.warning", "text=\"%.*s\"", (int)(end - p), p);
    }
}

int main(int argc, char **argv, char **envp)
{
    struct gw_config *c = NULL;
    struct buf text = BUF_INIT;
    keep_pages();
    sandbox_no_new_privs();
    log_set_name("kvblend");
    if (argc > 1 && strcmp(argv[1], "pull") == 0) return gw_pull(argc - 1, argv + 1);
    int r = gw_config_load(argc, argv, envp, &c, &text);
    if (r < 0) {
        (void)fprintf(stderr, "%s", r == -ENOMEM ? "kvblend: out of memory\n" : buf_cstr(&text));
        buf_fini(&text);
        return r == -EINVAL ? 2 : 1;
    }
    int status = 0;
    log_set_json(c->log_format && strcmp(c->log_format, "json") == 0);
    if (log_is_json())
        tell_warnings(buf_cstr(&text));
    else
        (void)fprintf(stderr, "%s", buf_cstr(&text)); /* warnings */
    buf_clear(&text);
    if (c->help) {
        (void)gw_config_help(c, &text);
        (void)printf("%s", buf_cstr(&text));
    } else if (c->version) {
        (void)printf("kvblend %s\n", KV_VERSION);
    } else if (c->hash_key) {
        status = hash_key(&text);
    } else if (c->check) {
        status = check_keys(c);
        c = NULL;
    } else {
        status = run_gateway(c, argc, argv, envp);
        c = NULL;
    }
    gw_config_free(c);
    buf_fini(&text);
    return status;
}
