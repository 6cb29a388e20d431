#include "tools/bench/svg.h"

#include "base/buf.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { WIDTH = 860, HEIGHT = 480, LEFT = 76, RIGHT = 150, TOP = 64, BOTTOM = 64, TICKS_MAX = 64 };

/* Okabe and Ito's palette without yellow: told apart by colour-blind readers. */
static const struct {
    const char *colour, *dash;
} style[] = {{"#0072b2", "none"}, {"#d55e00", "7 3"}, {"#009e73", "2 3"}, {"#cc79a7", "9 3 2 3"},
             {"#e69f00", "12 4"}, {"#56b4e9", "4 2"}, {"#000000", "1 3"}, {"#8c510a", "6 2 2 2"}};
enum { N_STYLES = sizeof style / sizeof *style };

struct axes {
    const struct svg_chart *c;
    double x_lo, x_hi, y_hi; /* x: logarithms on a logarithmic axis */
};

static double x_value(const struct svg_chart *c, double x)
{
    return c->x_log ? log2(x) : x;
}

static bool drawable(const struct svg_chart *c, const struct svg_series *s, size_t i)
{
    return isfinite(s->x[i]) && isfinite(s->y[i]) && (!c->x_log || s->x[i] > 0);
}

static double x_at(const struct axes *a, double x)
{
    double share = (x_value(a->c, x) - a->x_lo) / (a->x_hi - a->x_lo);
    return LEFT + share * (WIDTH - LEFT - RIGHT);
}

static double y_at(const struct axes *a, double y)
{
    return HEIGHT - BOTTOM - y / a->y_hi * (HEIGHT - TOP - BOTTOM);
}

/* 1, 2 or 5 times a power of ten, so that `span` has about `n` of them. */
static double nice_step(double span, double n)
{
    double step = pow(10, floor(log10(span / n)));
    double more = span / n / step;
    return step * (more > 5 ? 10 : more > 2 ? 5 : more > 1 ? 2 : 1);
}

static int find_axes(const struct svg_chart *c, struct axes *ret)
{
    double lo = DBL_MAX, hi = -DBL_MAX, y = 0;
    for (size_t s = 0; s < c->n_series; s++) {
        for (size_t i = 0; i < c->series[s].n; i++) {
            if (!drawable(c, &c->series[s], i)) continue;
            lo = fmin(lo, x_value(c, c->series[s].x[i]));
            hi = fmax(hi, x_value(c, c->series[s].x[i]));
            y = fmax(y, c->series[s].y[i]);
        }
    }
    if (lo > hi) return -EINVAL;
    if (hi - lo < 1e-9) { /* one x only */
        lo -= 0.5;
        hi += 0.5;
    }
    if (y <= 0) y = 1;
    double step = nice_step(y, 8);
    *ret = (struct axes){c, lo, hi, c->y_max > 0 ? c->y_max : ceil(y / step - 1e-9) * step};
    return 0;
}

/* ---- text ---- */

static int add_text(struct buf *out, const char *text)
{
    int r = 0;
    for (const char *p = text; r == 0 && *p; p++) {
        const char *entity = *p == '<' ? "&lt;" : *p == '>' ? "&gt;" : *p == '&' ? "&amp;" : NULL;
        r = entity ? buf_adds(out, entity) : buf_addc(out, *p);
    }
    return r;
}

static int add_label(struct buf *out, double x, double y, const char *attributes, const char *text)
{
    int r = buf_addf(out, "<text x=\"%.1f\" y=\"%.1f\" %s>", x, y, attributes);
    if (r == 0) r = add_text(out, text);
    return r == 0 ? buf_adds(out, "</text>\n") : r;
}

void svg_size_text(double bytes, char *ret, size_t cap)
{
    static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    size_t i = 0;
    for (; bytes >= 1024 && i + 1 < sizeof unit / sizeof *unit; i++)
        bytes /= 1024;
    (void)snprintf(ret, cap, bytes < 10 && bytes != floor(bytes) ? "%.1f %s" : "%.0f %s", bytes,
                   unit[i]);
}

static void tick_text(const struct svg_chart *c, double x, char *ret, size_t cap)
{
    static const struct {
        double of;
        const char *unit;
    } scale[] = {{1e9, "G"}, {1e6, "M"}, {1e3, "k"}};
    if (c->x_bytes) {
        svg_size_text(x, ret, cap);
        return;
    }
    for (size_t i = 0; i < sizeof scale / sizeof *scale; i++) {
        if (fabs(x) < scale[i].of) continue;
        (void)snprintf(ret, cap, "%g%s", x / scale[i].of, scale[i].unit);
        return;
    }
    (void)snprintf(ret, cap, "%g", x);
}

/* ---- parts ---- */

/* Where the vertical grid lines stand. */
static size_t x_ticks(const struct axes *a, double *ret)
{
    size_t n = 0;
    if (a->c->x_log && a->c->x_bytes) {
        double step = ceil((a->x_hi - a->x_lo) / 12);
        for (double e = ceil(a->x_lo - 1e-9); e <= a->x_hi + 1e-9 && n < TICKS_MAX; e += step)
            ret[n++] = exp2(e);
    } else if (a->c->x_log) {
        static const double of_ten[] = {1, 2, 5};
        bool all = a->x_hi - a->x_lo < 5 * log2(10); /* else only the powers of ten */
        for (int e = (int)floor(a->x_lo / log2(10)); e <= a->x_hi / log2(10); e++) {
            for (size_t i = 0; i < (all ? 3 : 1) && n < TICKS_MAX; i++) {
                double x = of_ten[i] * pow(10, e), at = log2(x);
                if (at >= a->x_lo - 1e-9 && at <= a->x_hi + 1e-9) ret[n++] = x;
            }
        }
    } else {
        double step = nice_step(a->x_hi - a->x_lo, 8);
        for (double x = ceil(a->x_lo / step) * step; x <= a->x_hi + step / 1e6 && n < TICKS_MAX;
             x += step)
            ret[n++] = x;
    }
    return n;
}

static int add_grid(const struct axes *a, struct buf *out)
{
    double tick[TICKS_MAX], step = nice_step(a->y_hi, 8);
    size_t n = x_ticks(a, tick);
    char text[40];
    int r = 0;
    for (size_t i = 0; r == 0 && i < n; i++) {
        double x = x_at(a, tick[i]);
        tick_text(a->c, tick[i], text, sizeof text);
        r = buf_addf(out, "<path class=\"grid\" d=\"M%.1f %dV%d\"/>\n", x, TOP, HEIGHT - BOTTOM);
        if (r == 0) r = add_label(out, x, HEIGHT - BOTTOM + 18, "text-anchor=\"middle\"", text);
    }
    for (int i = 0; r == 0 && i * step <= a->y_hi + step / 1e6; i++) {
        double y = y_at(a, i * step);
        (void)snprintf(text, sizeof text, "%g", i * step);
        r = buf_addf(out, "<path class=\"grid\" d=\"M%d %.1fH%d\"/>\n", LEFT, y, WIDTH - RIGHT);
        if (r == 0) r = add_label(out, LEFT - 8, y + 4, "text-anchor=\"end\"", text);
    }
    return r;
}

static int add_marker(struct buf *out, size_t k, double x, double y)
{
    static const char *const shape[] = {"M%.1f %.1fm-3 0a3 3 0 1 0 6 0a3 3 0 1 0 -6 0",
                                        "M%.1f %.1fm-3 -3h6v6h-6z", "M%.1f %.1fm0 -4l4 7h-8z",
                                        "M%.1f %.1fm0 -4l4 4l-4 4l-4 -4z"};
    int r = buf_addf(out, "<path fill=\"%s\" d=\"", style[k % N_STYLES].colour);
    if (r == 0) r = buf_addf(out, shape[k % 4], x, y);
    return r == 0 ? buf_adds(out, "\"/>\n") : r;
}

static int add_series(const struct axes *a, size_t k, struct buf *out)
{
    const struct svg_series *s = &a->c->series[k];
    int r = buf_addf(out,
                     "<path fill=\"none\" stroke=\"%s\" stroke-width=\"2\" "
                     "stroke-linejoin=\"round\" stroke-dasharray=\"%s\" d=\"",
                     style[k % N_STYLES].colour, style[k % N_STYLES].dash);
    bool pen_down = false;
    for (size_t i = 0; r == 0 && i < s->n; i++) {
        bool draw = drawable(a->c, s, i);
        if (draw)
            r = buf_addf(out, "%s%.1f %.1f", pen_down ? "L" : "M", x_at(a, s->x[i]),
                         y_at(a, s->y[i]));
        pen_down = draw;
    }
    if (r == 0) r = buf_adds(out, "\"/>\n");
    for (size_t i = 0; r == 0 && s->markers && i < s->n; i++)
        if (drawable(a->c, s, i)) r = add_marker(out, k, x_at(a, s->x[i]), y_at(a, s->y[i]));
    return r;
}

static int add_legend(const struct axes *a, struct buf *out)
{
    int r = 0;
    for (size_t k = 0; r == 0 && k < a->c->n_series; k++) {
        double x = WIDTH - RIGHT + 16, y = TOP + 12 + 22.0 * (double)k;
        r = buf_addf(out,
                     "<path stroke=\"%s\" stroke-width=\"2\" stroke-dasharray=\"%s\" "
                     "d=\"M%.1f %.1fh30\"/>\n",
                     style[k % N_STYLES].colour, style[k % N_STYLES].dash, x, y);
        if (r == 0 && a->c->series[k].markers) r = add_marker(out, k, x + 15, y);
        if (r == 0) r = add_label(out, x + 38, y + 4, "", a->c->series[k].name);
    }
    return r;
}

static int add_texts(const struct svg_chart *c, struct buf *out)
{
    double mid_x = (LEFT + WIDTH - RIGHT) / 2.0, mid_y = (TOP + HEIGHT - BOTTOM) / 2.0;
    char turned[80];
    (void)snprintf(turned, sizeof turned,
                   "text-anchor=\"middle\" transform=\"rotate(-90 20 %.1f)\"", mid_y);
    int r = add_label(out, LEFT, 26, "font-size=\"17\" font-weight=\"bold\"", c->title);
    if (r == 0 && c->note) r = add_label(out, LEFT, 46, "fill=\"#555\"", c->note);
    if (r == 0) r = add_label(out, mid_x, HEIGHT - 18, "text-anchor=\"middle\"", c->x_label);
    return r == 0 ? add_label(out, 20, mid_y, turned, c->y_label) : r;
}

int svg_chart(const struct svg_chart *c, struct buf *out)
{
    struct axes a;
    int r = find_axes(c, &a);
    if (r < 0) return r;
    r = buf_addf(out,
                 "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" "
                 "height=\"%d\" font-family=\"sans-serif\" font-size=\"13\" fill=\"#222\">\n"
                 "<style>.grid{stroke:#ddd;fill:none}</style>\n"
                 "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n",
                 WIDTH, HEIGHT, WIDTH, HEIGHT);
    if (r == 0) r = add_grid(&a, out);
    if (r == 0)
        r = buf_addf(out, "<path fill=\"none\" stroke=\"#222\" d=\"M%d %dV%dH%d\"/>\n", LEFT, TOP,
                     HEIGHT - BOTTOM, WIDTH - RIGHT);
    for (size_t k = 0; r == 0 && k < c->n_series; k++)
        r = add_series(&a, k, out);
    if (r == 0) r = add_legend(&a, out);
    if (r == 0) r = add_texts(c, out);
    return r == 0 ? buf_adds(out, "</svg>\n") : r;
}

int svg_write(const struct svg_chart *c, const char *path, struct err *err)
{
    struct buf text = BUF_INIT;
    int r = svg_chart(c, &text);
    if (r < 0) {
        buf_fini(&text);
        return err_set(err, r, "%s: %s", path, r == -EINVAL ? "nothing to draw" : err_name(r));
    }
    FILE *f = fopen(path, "we");
    bool ok = f && fwrite(text.data, 1, text.len, f) == text.len;
    if (f && fclose(f) != 0) ok = false;
    buf_fini(&text);
    return ok ? 0 : err_set(err, -EIO, "%s: cannot be written: %s", path, strerror(errno));
}
