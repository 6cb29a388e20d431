#include "gateway/listen.h"

#include "base/log.h"
#include "gateway/config.h"
#include "gateway/gate.h"

static int make_server(struct gw_gate *g, const struct gw_config *c)
{
    struct http_limits lim = {.body_bytes_max = c->max_body_bytes,
                              .head_timeout_ms = c->head_timeout_ms,
                              .body_timeout_ms = c->body_timeout_ms,
                              .write_timeout_ms = c->write_timeout_ms};
    return http_server_create(g->loop, &lim, &gw_front_ops, g, &g->server);
}

static int listen_on(struct gw_house *h, const char *text, struct err *err)
{
    struct gw_gate *g = &h->lane[0];
    struct buf a = BUF_INIT;
    int r = gw_parse_address(text, &a);
    if (r == 0) r = http_server_listen(g->server, buf_cstr(&a), err);
    if (r == 0)
        log_event(LOG_NOTICE, "gateway.listening", "address=%s port=%d", buf_cstr(&a),
                  http_server_port(g->server));
    buf_fini(&a);
    return r;
}

int gw_listen(struct gw_house *h, const struct gw_config *c, struct err *err)
{
    int r = 0;
    for (unsigned i = 0; r == 0 && i < h->n_lanes; i++)
        r = make_server(&h->lane[i], c);
    for (size_t i = 0; r == 0 && i < c->listen.n; i++)
        r = listen_on(h, c->listen.v[i], err);
    return r;
}
