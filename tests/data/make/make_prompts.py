#!/usr/bin/env python3
"""Prompts of retrieval frameworks as test data, made by the frameworks themselves.

Data preparation only; nothing here runs at run time. Each framework builds its prompts with its own templates and
chains and sends them to a model that only records. What is written to tests/data/segment/FRAMEWORK.json: the messages,
and the byte ranges of the documents in them. Frameworks that no Python package holds are written down from their
documented formats; the field "made_by" says so.

    pip install langchain-classic langchain-core llama-index-core haystack-ai
    pip install --no-deps lightrag-hku nano-graphrag;  pip download --no-deps open-webui   # only read, not imported
    tests/data/make/make_prompts.py [--open-webui WHEEL] [FRAMEWORK ...]
"""
import argparse
import ast
import html
import importlib.metadata
import importlib.util
import json
import pathlib
import random
import sys
import tempfile
import zipfile

OUT = pathlib.Path(__file__).resolve().parent.parent / "segment"
QUESTION = "Which harbour did the keeper restore after the storm, and in what year?"
WORDS = ("harbour granite signal keeper winter lantern railway orchard copper meadow archive voyage turbine glacier "
         "festival council bridge ledger engine foundry canal timber beacon mason island quarry station market").split()
ORDERS = 4


def sentence(rng, words=WORDS, n=12):
    picked = [rng.choice(words) for _ in range(n)]
    return f"{picked[0].capitalize()} {' '.join(picked[1:])} {rng.randrange(1000, 9999)}."


def prose(rng, n=4, words=WORDS):
    return " ".join(sentence(rng, words) for _ in range(n))


def code(rng):
    name = rng.choice(WORDS) + str(rng.randrange(100))
    lines = [f"def {name}(records):", f'    """Return the {rng.choice(WORDS)} of every record."""', "    total = 0", "",
             f"    for record in records[{rng.randrange(9)}:]:", f"        if record.{rng.choice(WORDS)} > {rng.randrange(99)}:",
             f"            total += record.{rng.choice(WORDS)}", "", "    return total"]
    return "\n".join(lines) + "\n\n\n" + f"class {name.capitalize()}:\n    limit = {rng.randrange(1000)}\n    kind = \"{rng.choice(WORDS)}\""


def shapes():
    """name → documents; texts of our own making."""
    greek = "λιμάνι χειμώνας φανάρι χαλκός λιβάδι 灯台 港口 冬季 café naïve über 🚢".split()
    rng = random.Random(11)
    yield "plain", [prose(rng) for _ in range(6)]
    yield "paragraphs", ["\n\n".join(prose(rng, 2) for _ in range(3)) for _ in range(6)]
    yield "titles", [f"{rng.choice(WORDS).capitalize()} {i}\n{prose(rng, 4)}" for i in range(6)]
    yield "lists", [prose(rng, 1) + "\n" + "\n".join(f"- {sentence(rng, n=8)}" for _ in range(5)) for _ in range(6)]
    yield "code", [code(rng) for _ in range(6)]
    yield "unicode", [prose(rng, 4, greek) for _ in range(6)]
    yield "crlf", ["\r\n".join(prose(rng, 2) for _ in range(3)) for _ in range(6)]
    yield "one", [prose(rng, 6)]
    yield "many", [prose(rng, 3) for _ in range(8)]


def orders(docs, n):
    rng = random.Random(len(docs))
    for k in range(n):
        picked = list(docs)
        if k:
            rng.shuffle(picked)
            if len(picked) > 3 and k % 2:
                picked.pop()
        yield picked


def ranges(messages, wanted, where=None):
    """Byte ranges of the wanted texts, in order."""
    out, at = [], {}
    for text in wanted:
        needle = text.encode()
        for m, message in enumerate(messages):
            begin = message["content"].encode().find(needle, at.get(m, 0))
            if begin >= 0 and (where is None or message["role"] == where):
                out.append([m, begin, begin + len(needle)])
                at[m] = begin + len(needle)
                break
        else:
            raise SystemExit(f"a document is not in its prompt: {text[:60]!r}")
    return out


def write(name, package, licence, made_by, presets, build, marked, only=None, chunk_of=lambda d: d):
    try:
        version = importlib.metadata.version(package) if package else None
    except importlib.metadata.PackageNotFoundError:
        version = None
    cases = []
    for shape, docs in shapes():
        if only and shape not in only:
            continue
        prompts = []
        for picked in orders(docs, 2 if marked else ORDERS):
            messages = build(picked)
            prompts.append({"messages": messages, "chunks": ranges(messages, [chunk_of(d) for d in picked])})
        cases.append({"shape": shape, "prompts": prompts})
    data = {"framework": name, "package": package, "version": version or VERSIONS.get(name), "licence": licence,
            "made_by": made_by, "presets": presets, "marked": marked, "cases": cases}
    (OUT / f"{name}.json").write_text(json.dumps(data, ensure_ascii=False, indent=1) + "\n")
    print(name, len(cases), "shapes")


def order_shapes(rng):
    yield "short", [prose(rng, 2) for _ in range(8)]
    yield "plain", [prose(rng, 5) for _ in range(8)]
    yield "long", [prose(rng, 14) for _ in range(8)]
    yield "paragraphs", ["\n\n".join(prose(rng, 2) for _ in range(4)) for _ in range(8)]
    yield "titles", [f"{rng.choice(WORDS).capitalize()} {i}\n\n{prose(rng, 5)}" for i in range(8)]
    yield "same opening", ["Copyright the Harbour Company. All rights are reserved.\n\n" + prose(rng, 5)
                           for _ in range(8)]
    yield "lists", [prose(rng, 1) + "\n" + "\n".join(f"- {sentence(rng, n=8)}" for _ in range(5)) for _ in range(8)]


def factored(prompt, documents, picked):
    """The prompt as what stands between documents, and their numbers: each document is written down once."""
    parts, at = [], 0
    for i in picked:
        begin = prompt.index(documents[i], at)
        parts += [prompt[at:begin], i]
        at = begin + len(documents[i])
    return parts + [prompt[at:]]


def write_orders(name, package, licence, made_by, cases):
    data = {"framework": name, "package": package, "version": importlib.metadata.version(package), "licence": licence,
            "made_by": made_by, "cases": cases}
    folder = OUT / "orders"
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(data, ensure_ascii=False, indent=0) + "\n")
    print(name, len(cases), "shapes")


VERSIONS = {}
LIBRARY = "the library itself, with a model that records what it is sent"
READ = "the library's own template and joining code, taken from its package"
RESEARCH = "written down from the framework's documented prompt format; no package to run"


# ---- LangChain ----

def langchain():
    from langchain_classic.chains import RetrievalQA
    from langchain_classic.chains.combine_documents import create_stuff_documents_chain
    from langchain_core.documents import Document
    from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
    from langchain_core.messages import AIMessage
    from langchain_core.prompts import ChatPromptTemplate
    from langchain_core.retrievers import BaseRetriever
    from langchain_core.tools import create_retriever_tool

    roles = {"human": "user", "system": "system", "ai": "assistant", "tool": "tool"}
    sent = []

    class Recorder(GenericFakeChatModel):
        def _generate(self, messages, *args, **kwargs):
            sent[:] = [{"role": roles[m.type], "content": m.content} for m in messages]
            return super()._generate(messages, *args, **kwargs)

    class Fixed(BaseRetriever):
        docs: list

        def _get_relevant_documents(self, query, *, run_manager):
            return self.docs

    def model():
        return Recorder(messages=iter([AIMessage("ok")]))

    def documents(docs):
        return [Document(page_content=d, metadata={"source": f"doc-{sum(d.encode()) % 997}.md"}) for d in docs]

    def stuff_user(docs):
        prompt = ChatPromptTemplate.from_messages([
            ("system", "You are a careful assistant."),
            ("user", "Answer the question based only on the following context:\n\n{context}\n\nQuestion: {input}")])
        create_stuff_documents_chain(model(), prompt).invoke({"context": documents(docs), "input": QUESTION})
        return list(sent)

    def stuff_system(docs):
        prompt = ChatPromptTemplate.from_messages([
            ("system", "Use the following pieces of retrieved context to answer the question. If you don't know the "
                       "answer, say that you don't know.\n\n{context}"), ("human", "{input}")])
        create_stuff_documents_chain(model(), prompt).invoke({"context": documents(docs), "input": QUESTION})
        return list(sent)

    def retrieval_qa(docs):
        chain = RetrievalQA.from_chain_type(model(), retriever=Fixed(docs=documents(docs)))
        chain.invoke({"query": QUESTION})
        return list(sent)

    def tutorial_tool(docs):
        text = "\n\n".join(f"Source: {d.metadata}\nContent: {d.page_content}" for d in documents(docs))
        return [{"role": "user", "content": QUESTION}, {"role": "tool", "content": text}]

    def retriever_tool(docs):
        tool = create_retriever_tool(Fixed(docs=documents(docs)), "search", "Searches the archive.")
        return [{"role": "user", "content": QUESTION}, {"role": "tool", "content": tool.invoke({"query": QUESTION})}]

    lc = ["langchain-stuff", "learned", "known", "blocks"]
    write("langchain-stuff", "langchain-classic", "MIT", LIBRARY, lc, stuff_user, False)
    write("langchain-stuff-system", "langchain-classic", "MIT", LIBRARY, lc, stuff_system, False)
    write("langchain-retrievalqa", "langchain-classic", "MIT", LIBRARY, lc, retrieval_qa, False)
    write("langchain-retriever-tool", "langchain-core", "MIT", LIBRARY, ["learned", "known", "blocks"], retriever_tool,
          False)
    write("langchain-agent-tool", "langchain-core", "MIT",
          "the join of LangChain's agent tutorial over the library's Document", ["langchain-tool"], tutorial_tool, True)


# ---- LlamaIndex ----

def llamaindex():
    from llama_index.core import Settings
    from llama_index.core.chat_engine import ContextChatEngine
    from llama_index.core.base.llms.types import ChatMessage, ChatResponse, LLMMetadata
    from llama_index.core.llms import MockLLM
    from llama_index.core.memory import ChatMemoryBuffer
    from llama_index.core.query_engine import CitationQueryEngine
    from llama_index.core.response_synthesizers import ResponseMode, get_response_synthesizer
    from llama_index.core.retrievers import BaseRetriever
    from llama_index.core.schema import MetadataMode, NodeWithScore, TextNode

    sent = []

    class Recorder(MockLLM):
        def complete(self, prompt, formatted=False, **kwargs):
            sent.append([{"role": "user", "content": prompt}])
            return super().complete(prompt, formatted=formatted, **kwargs)

        def chat(self, messages, **kwargs):
            sent.append([{"role": m.role.value, "content": m.content} for m in messages])
            return ChatResponse(message=ChatMessage(role="assistant", content="ok"))

    class ChatRecorder(Recorder):
        @property
        def metadata(self):
            return LLMMetadata(is_chat_model=True)

    class Fixed(BaseRetriever):
        def __init__(self, nodes):
            super().__init__()
            self.nodes = nodes

        def _retrieve(self, query_bundle):
            return self.nodes

    def nodes(docs):
        return [NodeWithScore(node=TextNode(text=d, metadata={"file_name": f"doc-{sum(d.encode()) % 997}.md"}), score=1)
                for d in docs]

    def content(d):
        return nodes([d])[0].node.get_content(metadata_mode=MetadataMode.LLM).strip()

    Settings.llm = Recorder(max_tokens=8)

    def synthesised(mode):
        def build(docs):
            sent.clear()
            get_response_synthesizer(llm=Settings.llm, response_mode=mode).synthesize(QUESTION, nodes(docs))
            return sent[-1]
        return build

    def context_chat(docs):
        sent.clear()
        engine = ContextChatEngine.from_defaults(retriever=Fixed(nodes(docs)), llm=ChatRecorder(max_tokens=8),
                                                 memory=ChatMemoryBuffer.from_defaults(token_limit=100000))
        engine.chat(QUESTION)
        return sent[-1]

    def citation(docs):
        sent.clear()
        CitationQueryEngine(retriever=Fixed(nodes(docs)), llm=Settings.llm, citation_chunk_size=2048).query(QUESTION)
        return sent[-1]

    def refine(docs):
        sent.clear()
        get_response_synthesizer(llm=Settings.llm, response_mode=ResponseMode.REFINE).synthesize(QUESTION, nodes(docs))
        return sent[-1]

    def metadata_orders():
        """SimpleDirectoryReader's nodes carry "file_path: …" in front of their text; four of eight, in 30 orders."""
        from llama_index.core import SimpleDirectoryReader

        rng, cases = random.Random(3), []
        for shape, docs in order_shapes(rng):
            with tempfile.TemporaryDirectory() as folder:
                for i, text in enumerate(docs):
                    (pathlib.Path(folder) / f"{WORDS[i]}-{i}.md").write_text(text)
                found = SimpleDirectoryReader(folder).load_data()
            for node in found:
                node.metadata["file_path"] = node.metadata["file_path"].replace(folder, "/srv/docs")
            texts = [n.get_content(metadata_mode=MetadataMode.LLM).strip() for n in found]
            asked = []
            for _ in range(30):
                picked = rng.sample(range(len(docs)), 4)
                sent.clear()
                question = f"What of the {rng.choice(WORDS)} in {rng.randrange(1800, 2000)}?"
                get_response_synthesizer(llm=Settings.llm, response_mode=ResponseMode.COMPACT).synthesize(
                    question, nodes=[NodeWithScore(node=found[i], score=1) for i in picked])
                assert len(sent) == 1 and len(sent[0]) == 1
                asked.append(factored(sent[0][0]["content"], texts, picked))
            cases.append({"shape": shape, "documents": texts, "prompts": asked})
        write_orders("llamaindex-file-path", "llama-index-core", "MIT", LIBRARY, cases)

    metadata_orders()
    qa = ["llamaindex-text-qa", "llamaindex-chat"]
    write("llamaindex-text-qa", "llama-index-core", "MIT", LIBRARY, qa, synthesised(ResponseMode.COMPACT), False,
          chunk_of=content)
    write("llamaindex-tree-summarize", "llama-index-core", "MIT", LIBRARY, qa,
          synthesised(ResponseMode.TREE_SUMMARIZE), False, chunk_of=content)
    write("llamaindex-chat", "llama-index-core", "MIT", LIBRARY, qa, context_chat, False, chunk_of=content)
    write("llamaindex-citation", "llama-index-core", "MIT", LIBRARY, ["llamaindex-citation"], citation, True)

    last = []

    def refine_last(docs):
        messages = refine(docs)
        last[:] = [content(docs[-1])]
        return messages

    cases = []
    for shape, docs in shapes():
        if len(docs) > 1:
            messages = refine_last(docs[:3])
            cases.append({"shape": shape, "prompts": [{"messages": messages, "chunks": ranges(messages, last)}]})
    (OUT / "llamaindex-refine.json").write_text(json.dumps({
        "framework": "llamaindex-refine", "package": "llama-index-core",
        "version": importlib.metadata.version("llama-index-core"), "licence": "MIT", "made_by": LIBRARY,
        "presets": ["llamaindex-refine"], "marked": True, "cases": cases}, ensure_ascii=False, indent=1) + "\n")


# ---- Haystack ----

def haystack():
    from haystack import Document
    from haystack.components.builders import PromptBuilder

    def builder(template):
        b = PromptBuilder(template=template, required_variables="*")
        return lambda docs: [{"role": "user", "content": b.run(
            documents=[Document(content=d) for d in docs], question=QUESTION)["prompt"]}]

    tutorial = ("Given the following information, answer the question.\n\nContext:\n{% for document in documents %}\n"
                "    {{ document.content }}\n{% endfor %}\n\nQuestion: {{question}}\nAnswer:")
    numbered = ("Answer from the documents.\n\n{% for document in documents %}Document {{ loop.index }}:\n"
                "{{ document.content }}\n\n{% endfor %}Question: {{question}}\nAnswer:")
    bare = ("Given these documents, answer the question.\nDocuments:\n{% for doc in documents %}{{ doc.content }}"
            "{% endfor %}\nQuestion: {{question}}\nAnswer:")
    names = ["haystack", "langchain-stuff"]
    write("haystack-tutorial", "haystack-ai", "Apache-2.0", LIBRARY, names, builder(tutorial), False)
    write("haystack-numbered", "haystack-ai", "Apache-2.0", LIBRARY, ["document-colon"], builder(numbered), True)
    write("haystack-no-separator", "haystack-ai", "Apache-2.0", LIBRARY, names, builder(bare), False,
          only=["plain", "many"])


# ---- packages that are read, not imported ----

def functions_of(source, names, scope):
    """Define the named functions of a source file, and nothing else of it."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and node.name in names:
            node.decorator_list = []
            exec(compile(ast.Module([node], []), node.name, "exec"), scope)  # noqa: S102
    return scope


def package_file(package, name):
    for f in importlib.metadata.files(package):
        if str(f) == name:
            return pathlib.Path(f.locate()).read_text()
    raise SystemExit(f"{package} has no {name}")


def prompts_of(package, name):
    """The table PROMPTS of a source file: its constant entries."""
    table = {}
    for node in ast.parse(package_file(package, name)).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript) \
                and isinstance(node.value, ast.Constant):
            table[ast.literal_eval(node.targets[0].slice)] = node.value.value
    return table


def lightrag():
    prompts = prompts_of("lightrag-hku", "lightrag/prompt.py")
    render = functions_of(package_file("lightrag-hku", "lightrag/utils.py"), ["render_chunks_context_text"],
                          {"json": json})["render_chunks_context_text"]

    def build(docs):
        chunks = [{"reference_id": str(i + 1), "content": d} for i, d in enumerate(docs)]
        context = prompts["naive_query_context"].format(
            text_chunks_str=render(chunks),
            reference_list_str="\n".join(f"[{i + 1}] doc-{i}.md" for i in range(len(docs))))
        system = prompts["naive_rag_response"].format(content_data=context, response_type="Multiple Paragraphs",
                                                      user_prompt="n/a")
        return [{"role": "system", "content": system}, {"role": "user", "content": QUESTION}]

    write("lightrag", "lightrag-hku", "MIT", READ, ["lightrag"], build, True,
          chunk_of=lambda d: json.dumps(d, ensure_ascii=False)[1:-1])


def nanographrag():
    prompts = prompts_of("nano-graphrag", "nano_graphrag/prompt.py")

    def build(docs):
        system = prompts["naive_rag_response"].format(content_data="--New Chunk--\n".join(docs),
                                                      response_type="Multiple Paragraphs")
        return [{"role": "system", "content": system}, {"role": "user", "content": QUESTION}]

    write("nano-graphrag", "nano-graphrag", "MIT", READ, ["nano-graphrag", "nano-graphrag-join"], build, True)


def openwebui(wheel):
    with zipfile.ZipFile(wheel) as z:
        VERSIONS["openwebui"] = pathlib.Path(wheel).name.split("-")[1]
        config = z.read("open_webui/config.py").decode()
        middleware = z.read("open_webui/utils/middleware.py").decode()
    template = next(n.value.value for n in ast.parse(config).body if isinstance(n, ast.Assign)
                    and getattr(n.targets[0], "id", "") == "DEFAULT_RAG_TEMPLATE")
    context_of = functions_of(middleware, ["get_source_context"], {
        "html": html, "filter_source_metadata": lambda m: {}})["get_source_context"]

    def build(docs):
        sources = [{"source": {"id": f"file-{sum(d.encode()) % 997}", "name": "archive.pdf"}, "document": [d],
                    "metadata": [{"source": f"file-{sum(d.encode()) % 997}"}]} for d in docs]
        return [{"role": "user", "content": template.replace("{{CONTEXT}}", context_of(sources)) + "\n" + QUESTION}]

    write("openwebui", None, "template and joining code: Open WebUI License; texts: ours", READ, ["openwebui"], build,
          True)


# ---- formats without a package ----

def documented():
    d21 = "-" * 21
    ask = [{"role": "user", "content": QUESTION}]

    def join(docs, one, between):
        return between.join(one(i, d) for i, d in enumerate(docs))

    def system(head, one, between, tail):
        return lambda docs: [{"role": "system", "content": head + join(docs, one, between) + tail}] + ask

    def user(head, one, between, tail):
        return lambda docs: [{"role": "user", "content": head + join(docs, one, between) + tail}]

    formats = {
        "dify": (system("Use the following context as your learned knowledge, inside <context></context> XML tags.\n\n"
                        "<context>\n", lambda i, d: d, "\n", "\n</context>\n\nWhen answer to user:\n- If you don't know,"
                        " just say that you don't know.\n"), ["dify"], False),
        "ragflow": (system("You are an assistant.\nHere is the knowledge base:\n------\n",
                           lambda i, d: f"ID: {i}\n├── Title: archive-{i}.pdf\n├── URL: http://example.com/{i}\n"
                           f"└── Content:\n{d}", "\n\n------\n\n", "\n\nThe above is the knowledge base."), ["ragflow"],
                    True),
        "anythingllm": (system("Given the following conversation, answer. Today is 2026-03-04T05:06.\nContext:\n",
                               lambda i, d: f"[CONTEXT {i}]:\n{d}\n[END CONTEXT {i}]\n\n", "", ""), ["anythingllm"],
                        True),
        "privategpt": (system("=" * 21 + "\n", lambda i, d: f"Citation identifier ab{i}\n---\n{d}\n---\n", "\n",
                              "=" * 21 + "\n"), ["privategpt"], True),
        "langchain4j": (user(QUESTION + "\n\nAnswer using the following information:\n", lambda i, d: d, "\n\n", ""),
                        ["langchain4j"], False),
        "langchain4j-metadata": (user(QUESTION + "\n\nAnswer using the following information:\n",
                                      lambda i, d: f"content: {d}\nsource: archive-{sum(d.encode()) % 997}.pdf",
                                      "\n\n", ""), ["langchain4j-metadata", "langchain4j"], "metadata"),
        "spring-ai": (user(QUESTION + f"\n\nContext information is below, surrounded by {d21}\n\n{d21}\n",
                           lambda i, d: d, "\n", f"\n{d21}\n\nGiven the context and provided history information and "
                           "not prior knowledge, reply to the user comment."), ["spring-ai"], False),
        "azure-search": (user(QUESTION + "\n\nSources:\n",
                              lambda i, d: f"archive-{i}.pdf#page={i}: " + " ".join(d.split()), "\n", ""),
                         ["azure-search"], "lines"),
        "onyx": (user("Use the documents.\n", lambda i, d: f"DOCUMENT {i + 1}: archive\n```\n{d}\n```\n", "\n",
                      "\nQUERY: " + QUESTION), ["onyx"], True),
        "anthropic": (user("<documents>\n", lambda i, d: f'<document index="{i + 1}">\n<source>a{i}.pdf</source>\n'
                           f"<document_content>\n{d}\n</document_content>\n</document>\n", "",
                           "</documents>\n\n" + QUESTION), ["anthropic"], True),
    }
    for name, (build, presets, kind) in formats.items():
        lines = kind == "lines"
        of = {"lines": lambda d: " ".join(d.split()),
              "metadata": lambda d: f"{d}\nsource: archive-{sum(d.encode()) % 997}.pdf"}.get(kind, lambda d: d)
        write(name, None, "format only; texts: ours", RESEARCH, presets, build, kind is not False,
              only=["plain", "many", "one"] if lines else None, chunk_of=of)


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    p.add_argument("--open-webui", metavar="WHEEL")
    p.add_argument("framework", nargs="*")
    a = p.parse_args()
    makers = {"langchain": langchain, "llamaindex": llamaindex, "haystack": haystack, "lightrag": lightrag,
              "nano-graphrag": nanographrag, "documented": documented}
    if a.open_webui:
        makers["openwebui"] = lambda: openwebui(a.open_webui)
    for name in a.framework or makers:
        if name not in makers:
            sys.exit(f"unknown framework {name}; one of {', '.join(makers)}")
        makers[name]()


if __name__ == "__main__":
    main()
