/* doctor: what to change, of the gateway and of every worker, in one list by what it is worth. */
#include "tools/ctl/ctl.h"

#include <stdio.h>

/* As monitors expect it; "cannot ask" is no answer, or a refusal. */
enum { HEALTHY = 0, TO_DO = 1, CANNOT_ASK = 2, FINDINGS_MAX = 4096 };

static const char doctor_view[] = "[{?findings.0}|nothing to change\n]"
                                  "<findings:{#}. {what}[{?worker}  (worker {worker})]\n"
                                  "   do: {fix}\n>";

struct list {
    json_t *item[FINDINGS_MAX];
    size_t n;
};

/* Of equal ones the first asked comes first. */
static void add_all(struct list *l, json_t *findings, const char *worker)
{
    size_t i;
    json_t *f;
    json_array_foreach(findings, i, f) {
        if (l->n == FINDINGS_MAX) return;
        if (worker) (void)json_object_set_new(f, "worker", json_string(worker));
        size_t at = l->n++;
        for (; at > 0 && ctl_num(l->item[at - 1], "worth") < ctl_num(f, "worth"); at--)
            l->item[at] = l->item[at - 1];
        l->item[at] = f;
    }
}

static json_t *merge_findings(json_t *answer)
{
    struct list l = {.n = 0};
    json_t *all = json_array(), *worker;
    char number[24];
    size_t i;
    add_all(&l, json_object_get(answer, "findings"), NULL);
    json_array_foreach(json_object_get(answer, "workers"), i, worker) {
        (void)snprintf(number, sizeof number, "%.0f", ctl_num(worker, "index"));
        add_all(&l, json_object_get(json_object_get(worker, "doctor"), "findings"), number);
    }
    for (i = 0; i < l.n; i++)
        (void)json_array_append(all, l.item[i]);
    return json_pack("{s:o}", "findings", all);
}

static int doctor(const struct ctl_args *a)
{
    struct ctl_reply r;
    if (ctl_request(a, "GET /admin/doctor", "", &r) != CTL_OK) return CANNOT_ASK;
    json_t *all = merge_findings(r.json);
    const int rc = json_array_size(json_object_get(all, "findings")) > 0 ? TO_DO : HEALTHY;
    ctl_print(a, all, doctor_view);
    json_decref(all);
    ctl_reply_fini(&r);
    return rc;
}

const struct ctl_command ctl_doctor[] = {
    {"doctor", NULL, CTL_WATCH,
     "what to change, with the command; exit status 0: nothing, 1: something, 2: no answer",
     .run = doctor},
    {0}};
