/* Built-in chat templates, for files that bring none: the families' formats in their shortest form,
 * run like any other template. */
#include "fusor/text/chat.h"

#include <string.h>

#define FOR "{%- for message in messages %}"
#define END_FOR "{%- endfor %}"
#define GENERATION(header) "{%- if add_generation_prompt %}{{ '" header "' }}{% endif %}"

/* ---- chatml: SmolLM2, Qwen ---- */
#define IM_TURN "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
#define IM_DEFAULT(text)                                                                           \
    "{%- if messages[0].role != 'system' %}"                                                       \
    "{{ '<|im_start|>system\\n" text "<|im_end|>\\n' }}{% endif %}"
#define IM_GENERATION GENERATION("<|im_start|>assistant\\n")
#define QWEN_DEFAULT "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."
/* Answers of tools that follow each other share one user turn. */
#define QWEN_TOOL                                                                                  \
    "{%- if message.role == 'tool' %}"                                                             \
    "{{- '' if (loop.previtem or {}).role == 'tool' else '<|im_start|>user' }}"                    \
    "{{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}"                     \
    "{{- '' if (loop.nextitem or {}).role == 'tool' else '<|im_end|>\\n' }}"
/* Thoughts are spelt out behind the last question and dropped before it. */
#define QWEN3_QUESTION                                                                             \
    "{%- set ns = namespace(last=messages|length - 1) %}" FOR "{%- if message.role == 'user' and " \
    "not (message.content.startswith('<tool_response>') and "                                      \
    "message.content.endswith('</tool_response>')) %}"                                             \
    "{%- set ns.last = loop.index0 %}{% endif %}" END_FOR
#define QWEN3_ASSISTANT                                                                            \
    "{%- elif message.role == 'assistant' %}"                                                      \
    "{%- set parts = message.content.split('</think>') %}"                                         \
    "{%- set answer = parts[-1].lstrip('\\n') if parts|length > 1 else message.content %}"         \
    "{%- set thought = parts[0].rstrip('\\n').split('<think>')[-1].strip('\\n') "                  \
    "if parts|length > 1 else '' %}"                                                               \
    "{{- '<|im_start|>assistant\\n' }}"                                                            \
    "{%- if loop.index0 > ns.last and (loop.last or thought) %}"                                   \
    "{{- '<think>\\n' + thought + '\\n</think>\\n\\n' + answer.lstrip('\\n') }}"                   \
    "{%- else %}{{ answer }}{% endif %}{{ '<|im_end|>\\n' }}"

/* ---- Llama ---- */
#define LLAMA3_HEADER(role) "<|start_header_id|>" role "<|end_header_id|>\\n\\n"
#define LLAMA3_TURNS                                                                               \
    FOR "{{- '" LLAMA3_HEADER(                                                                     \
        "' + message.role + '") "' + message.content|trim + '<|eot_id|>' }}" END_FOR               \
    GENERATION(LLAMA3_HEADER("assistant"))
#define LLAMA3_DATED(date)                                                                         \
    "{{- bos_token }}{% set system = '' %}"                                                        \
    "{%- if messages[0].role == 'system' %}{% set system = messages[0].content|trim %}"            \
    "{%- set messages = messages[1:] %}{% endif %}"                                                \
    "{{- '" LLAMA3_HEADER(                                                                         \
        "system") "Cutting Knowledge Date: December 2023\\nToday Date: ' + " date                  \
                  " + '\\n\\n' + system + '<|eot_id|>' }}" LLAMA3_TURNS

/* user, assistant, user, … behind a system message, which goes into a question. */
#define ALTERNATE                                                                                  \
    "{%- set system = '' %}{% if messages[0].role == 'system' %}"                                  \
    "{%- set system = messages[0].content %}{% set messages = messages[1:] %}"                     \
    "{%- set has_system = true %}{% endif %}"                                                      \
    "{%- for message in messages %}"                                                               \
    "{%- if message.role != ('user' if loop.index0 is even else 'assistant') %}"                   \
    "{{ raise_exception('user and assistant messages must take turns, user first') }}{% endif %}"
#define NO_SYSTEM                                                                                  \
    "{%- if messages[0].role == 'system' %}"                                                       \
    "{{ raise_exception('a system message is not supported') }}{% endif %}"

/* ---- Mistral ---- */
#define MISTRAL(open, close, where, lead, content, after)                                          \
    "{{- bos_token }}" ALTERNATE "{%- if message.role == 'user' %}{{ '" open "' }}"                \
    "{%- if has_system and " where " %}{{ system + '\\n\\n' }}{% endif %}"                         \
    "{{- message.content + '" close "' }}"                                                         \
    "{%- else %}{{ '" lead "' + " content " + eos_token + '" after "' }}{% endif %}" END_FOR

#define PHI3_TURN(role, open)                                                                      \
    "message.role == '" role "' %}{{ '<|" role "|>\\n' + message.content + '<|end|>\\n" open "' "  \
    "}}"

static const struct {
    const char *name, *source;
} builtin[] = {
    {"smollm2", IM_DEFAULT("You are a helpful AI assistant named SmolLM, trained by Hugging Face")
                    FOR IM_TURN END_FOR IM_GENERATION},
    {"qwen2", IM_DEFAULT("You are a helpful assistant.") FOR IM_TURN END_FOR IM_GENERATION},
    {"qwen2.5", IM_DEFAULT(QWEN_DEFAULT) FOR QWEN_TOOL "{%- else %}" IM_TURN
                                                       "{%- endif %}" END_FOR IM_GENERATION},
    {"qwen3", QWEN3_QUESTION FOR QWEN_TOOL QWEN3_ASSISTANT "{%- else %}" IM_TURN
                                                           "{%- endif %}" END_FOR IM_GENERATION},
    {"chatml", FOR IM_TURN END_FOR IM_GENERATION},
    /* The system text stands bare before the first turn; every user turn opens the answer. */
    {"yi", FOR "{%- if message.role == 'user' %}{{ '<|im_start|>user\\n' + message.content + "
               "'<|im_end|>\\n<|im_start|>assistant\\n' }}{% elif message.role == 'assistant' %}"
               "{{ message.content + '<|im_end|>\\n' }}{% elif loop.first %}{{ message.content }}"
               "{%- endif %}" END_FOR},
    {"llama2", ALTERNATE
     "{%- if message.role == 'user' %}{% set content = message.content %}"
     "{%- if has_system and loop.first %}"
     "{%- set content = '<<SYS>>\\n' + system + '\\n<</SYS>>\\n\\n' + content %}{% endif %}"
     "{{- bos_token + '[INST] ' + content.strip() + ' [/INST]' }}"
     "{%- else %}{{ ' ' + message.content.strip() + ' ' + eos_token }}{% endif %}" END_FOR},
    {"llama3", "{{- bos_token }}" LLAMA3_TURNS},
    {"llama3.1", LLAMA3_DATED("'26 Jul 2024'")},
    {"llama3.2", LLAMA3_DATED("strftime_now('%d %b %Y')")},
    {"mistral-v0.1", NO_SYSTEM MISTRAL("[INST] ", " [/INST]", "false", "", "message.content", " ")},
    {"mistral-v1", MISTRAL(" [INST] ", " [/INST]", "loop.first", " ", "message.content", "")},
    {"mistral-v3", MISTRAL("[INST] ", "[/INST]", "loop.last", " ", "message.content|trim", "")},
    {"mistral-tekken", MISTRAL("[INST]", "[/INST]", "loop.last", "", "message.content", "")},
    {"zephyr",
     FOR "{{- '<|' + message.role + '|>\\n' + message.content + eos_token + '\\n' }}" END_FOR
         GENERATION("<|assistant|>\\n")},
    {"phi3",
     FOR "{%- if " PHI3_TURN("system", "") "{% elif " PHI3_TURN("user", "") "{% elif " PHI3_TURN(
         "assistant", "") "{% endif %}" END_FOR
                          "{{- '<|assistant|>\\n' if add_generation_prompt else eos_token }}"},
    /* The first release: no system turn, and every question opens its answer. */
    {"phi3-v1",
     NO_SYSTEM "{{- bos_token }}" FOR "{%- if " PHI3_TURN(
         "user",
         "<|assistant|>\\n") "{% else %}{{ message.content + '<|end|>\\n' }}{% endif %}" END_FOR}};
enum { N_BUILTIN = sizeof builtin / sizeof builtin[0] };

const char *chat_builtin_name(size_t i)
{
    return i < N_BUILTIN ? builtin[i].name : NULL;
}

const char *chat_builtin(const char *name)
{
    for (size_t i = 0; i < N_BUILTIN; i++)
        if (strcmp(builtin[i].name, name) == 0) return builtin[i].source;
    return NULL;
}
