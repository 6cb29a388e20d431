#include "gateway/front/ui.h"

#include "gateway/front/front.h"
#include "gateway/front/reply.h"
#include "gateway/request/request.h"

#include <string.h>

/* Nothing from elsewhere, nothing inline, no frame around it: text that slips into the page as
 * markup loads and runs nothing. */
static const char headers[] =
    "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; "
    "form-action 'none'\r\n"
    "X-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n"
    "Cross-Origin-Opener-Policy: same-origin\r\nCross-Origin-Resource-Policy: same-origin\r\n"
    "Cache-Control: no-cache\r\n";

static const struct gw_ui_file *find_file(const char *path)
{
    const char *name = path + strlen("/ui");
    if (strncmp(path, "/ui", strlen("/ui")) != 0 || (*name && *name != '/')) return NULL;
    name += *name == '/';
    if (!*name) name = "index.html";
    for (size_t i = 0; i < gw_n_ui_files; i++)
        if (strcmp(gw_ui_files[i].name, name) == 0) return &gw_ui_files[i];
    return NULL;
}

static const char *type_of(const char *name)
{
    const char *dot = strrchr(name, '.');
    if (dot && strcmp(dot, ".js") == 0) return "text/javascript; charset=utf-8";
    if (dot && strcmp(dot, ".css") == 0) return "text/css; charset=utf-8";
    if (dot && strcmp(dot, ".svg") == 0) return "image/svg+xml";
    if (dot && strcmp(dot, ".txt") == 0) return "text/plain; charset=utf-8";
    return "text/html; charset=utf-8";
}

static void answer_file(struct gw_req *q)
{
    const struct gw_ui_file *f = find_file(q->http->msg.path);
    struct buf lines = BUF_INIT, body = BUF_INIT;
    (void)buf_adds(&lines, headers);
    (void)buf_adds(&body, f->text);
    gw_answer_with(q, 200, type_of(f->name), &lines, &body);
}

static const struct gw_route route = {"/ui", "GET", NULL, answer_file, GW_R_OPEN};

const struct gw_route *gw_ui_route(const char *path)
{
    return find_file(path) ? &route : NULL;
}
