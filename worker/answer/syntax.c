/* The syntaxes of tool calls and thoughts, and how templates are told apart by what they say. */
#include "worker/answer/answer.h"

#include <string.h>

static const struct ans_tags xml = {.call = "<function=",
                                    .name_end = ">",
                                    .key = "<parameter=",
                                    .key_end = ">",
                                    .value = "",
                                    .value_end = "</parameter>",
                                    .end = "</function>"},
                             glm = {.call = "",
                                    .name_end = "",
                                    .key = "<arg_key>",
                                    .key_end = "</arg_key>",
                                    .value = "<arg_value>",
                                    .value_end = "</arg_value>",
                                    .end = "</tool_call>"};

static const struct ans_messages harmony = {
    .start = "<|start|>",
    .channel = "<|channel|>",
    .to = "to=functions.",
    .thought = "analysis",
    .body = "<|message|>",
    .end = {"<|end|>", "<|call|>", "<|return|>"},
    .thoughts = {"<|channel|>analysis<|message|>", "<|end|>"},
    .answer = "<|channel|>final<|message|>"};

/* The first whose texts all stand in the template is the template's; without any: by name only. */
static const struct known {
    const char *says[3];
    struct ans_syntax is;
} known[] = {
    {{"<|channel|>", "functions.", "<|call|>"},
     {.name = "harmony",
      .args = "arguments",
      .open = "<|channel|>commentary to=functions.",
      .after_name = " <|constrain|>json<|message|>",
      .messages = &harmony}},
    {{"[TOOL_CALLS]", "[ARGS]"},
     {.name = "mistral-args",
      .args = "arguments",
      .open = "[TOOL_CALLS]",
      .after_name = "[ARGS]",
      .before_id = "[CALL_ID]",
      .short_ids = true}},
    {{"[TOOL_CALLS]"},
     {.name = "mistral",
      .args = "arguments",
      .open = "[TOOL_CALLS]",
      .list = true,
      .short_ids = true}},
    {{"<|tool_call|>", "<|/tool_call|>"},
     {.name = "phi4",
      .args = "arguments",
      .open = "<|tool_call|>",
      .close = "<|/tool_call|>",
      .list = true}},
    {{"<|tool_call|>"},
     {.name = "granite", .args = "arguments", .open = "<|tool_call|>", .list = true}},
    {{"functools["}, {.name = "functools", .args = "arguments", .open = "functools", .list = true}},
    {{"<\uff5ctool\u2581call\u2581begin\uff5c>", "```json"},
     {.name = "deepseek",
      .args = "arguments",
      .open = "<\uff5ctool\u2581call\u2581begin\uff5c>function<\uff5ctool\u2581sep\uff5c>",
      .close = "```<\uff5ctool\u2581call\u2581end\uff5c>",
      .after_name = "```json",
      .around = {"<\uff5ctool\u2581calls\u2581begin\uff5c>",
                 "<\uff5ctool\u2581calls\u2581end\uff5c>"}}},
    {{"<\uff5ctool\u2581call\u2581begin\uff5c>"},
     {.name = "deepseek-3.1",
      .args = "arguments",
      .open = "<\uff5ctool\u2581call\u2581begin\uff5c>",
      .close = "<\uff5ctool\u2581call\u2581end\uff5c>",
      .after_name = "<\uff5ctool\u2581sep\uff5c>",
      .around = {"<\uff5ctool\u2581calls\u2581begin\uff5c>",
                 "<\uff5ctool\u2581calls\u2581end\uff5c>"}}},
    {{"<tool_call>", "<function=", "<parameter="},
     {.name = "qwen-coder",
      .args = "arguments",
      .open = "<tool_call>",
      .close = "</tool_call>",
      .tags = &xml}},
    {{"<tool_call>", "<arg_key>", "<arg_value>"},
     {.name = "glm", .args = "arguments", .open = "<tool_call>", .tags = &glm}},
    {{">>>", "all"},
     {.name = "functionary",
      .args = "arguments",
      .open = ">>>",
      .after_name = "\n",
      .prose = "all"}},
    {{"<tool_call>", "\"arguments\""},
     {.name = "hermes", .args = "arguments", .open = "<tool_call>", .close = "</tool_call>"}},
    {{"<function=", "</function>", ">{"},
     {.name = "function-tag",
      .args = "arguments",
      .open = "<function=",
      .close = "</function>",
      .after_name = ">"}},
    {{"\"parameters\": ", "ipython", "<|python_start|>"}, /* whose end is no text */
     {.name = "llama4", .args = "parameters", .open = "<|python_start|>", .bare = true}},
    {{"\"parameters\": ", "ipython"},
     {.name = "llama3", .args = "parameters", .open = "<|python_tag|>", .bare = true}},
};
enum { N_KNOWN = sizeof known / sizeof *known };
static const char generic[] = "hermes";

static const struct ans_marks thoughts[] = {{"<think>", "</think>"}, {"[THINK]", "[/THINK]"}};

const struct ans_syntax *ans_syntax_of(const char *jinja)
{
    for (size_t i = 0; i < N_KNOWN; i++) {
        size_t n = 0;
        while (n < 3 && known[i].says[n] && strstr(jinja, known[i].says[n]))
            n++;
        if (n == 3 || !known[i].says[n]) return &known[i].is;
    }
    return NULL;
}

const struct ans_syntax *ans_syntax_named(const char *name)
{
    for (size_t i = 0; i < N_KNOWN; i++)
        if (strcmp(known[i].is.name, name) == 0) return &known[i].is;
    return NULL;
}

const struct ans_syntax *ans_syntax_generic(void)
{
    return ans_syntax_named(generic);
}

const struct ans_marks *ans_thoughts_of(const char *jinja)
{
    for (size_t i = 0; i < sizeof thoughts / sizeof *thoughts; i++)
        if (strstr(jinja, thoughts[i].close)) return &thoughts[i];
    return NULL;
}
