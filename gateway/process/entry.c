#include "gateway/process/entry.h"

#include "base/buf.h"
#include "base/mem.h"
#include "base/opt.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

static int set_plain(const struct gw_entry_field *f, void *to, struct arena *texts,
                     const char *value)
{
    double number = 0;
    int64_t whole;
    uint64_t ms;
    char *text;
    switch (f->kind) {
    case GW_ENTRY_TEXT:
        if (!*value) return -EINVAL;
        if (!(text = arena_strndup(texts, value, strlen(value)))) return -ENOMEM;
        *(char **)to = text;
        return 0;
    case GW_ENTRY_BOOL:
        return opt_parse_bool(value, to) < 0 ? -EINVAL : 0;
    case GW_ENTRY_DOUBLE:
        if (opt_parse_double(value, &number) < 0) return -EINVAL;
        break;
    case GW_ENTRY_UINT:
        if (opt_parse_int(value, &whole) < 0) return -EINVAL;
        number = (double)whole;
        break;
    case GW_ENTRY_MS:
        if (opt_parse_duration_ms(value, &ms) < 0) return -EINVAL;
        number = (double)ms;
        break;
    }
    if (!(number >= f->min && number <= f->max)) return -EINVAL;
    if (f->kind == GW_ENTRY_DOUBLE)
        *(double *)to = number;
    else
        *(uint32_t *)to = (uint32_t)number;
    return 0;
}

int gw_entry_set(const struct gw_entry_field *table, void *entry, struct arena *texts,
                 const char *name, const char *value)
{
    for (const struct gw_entry_field *f = table; f->name; f++)
        if (strcmp(f->name, name) == 0)
            return f->set ? f->set(entry, texts, value)
                          : set_plain(f, (char *)entry + f->offset, texts, value);
    return -ENOENT;
}

int gw_entry_word(const char **p, struct buf *word)
{
    const char *s = *p + strspn(*p, " \t\r\n");
    bool quoted = false;
    buf_clear(word);
    if (!*s) return 0;
    for (; *s && (quoted || !strchr(" \t\r\n", *s)); s++) {
        if (*s == '"') {
            quoted = !quoted;
            continue;
        }
        if (quoted && *s == '\\' && s[1]) s++;
        if (buf_addc(word, *s) < 0) return -ENOMEM;
    }
    *p = s;
    if (quoted) return -EINVAL;
    return buf_cstr(word) ? 1 : -ENOMEM;
}

bool gw_entry_names_variable(const char *text, char *ret, size_t cap)
{
    const size_t len = strlen(text);
    if (strncmp(text, "os.environ/", 11) == 0)
        (void)snprintf(ret, cap, "%s", text + 11);
    else if (len > 3 && strncmp(text, "${", 2) == 0 && text[len - 1] == '}')
        (void)snprintf(ret, cap, "%.*s", (int)(len - 3), text + 2);
    else
        return false;
    return true;
}
