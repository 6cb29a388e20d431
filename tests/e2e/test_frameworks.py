#!/usr/bin/env python3
"""Frameworks against own workers, unmodified but for the base URL: tools, structured answers, agents.

LangChain, LlamaIndex, Haystack, instructor, pydantic-ai, LiteLLM, OpenAI's Agents SDK over /v1/responses, Anthropic's
SDK over /v1/messages, Cohere's SDK and those that rerank through it over /v2/rerank. The model is small and says little of sense: what must be a call is
held to be one, agents are free. Each framework that takes tools asks twice over a retriever's answer, which is a
chunk: the second time its KV is reused. Run by `tools/test --clients`, which makes a Python with the packages of
frameworks.txt ($KVBLEND_FRAMEWORKS_PYTHON).
"""
import asyncio
import json
import os
import random
from typing import Annotated

from harness import KVBLEND, ROOT, WORKER, gateway, main, need, other_python, parse_metrics, real_model, skip

os.environ.update({"LANGSMITH_TRACING": "false", "OPENAI_API_KEY": "none", "OPENAI_AGENTS_DISABLE_TRACING": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True",
                   "HAYSTACK_TELEMETRY_ENABLED": "False", "TOKENIZERS_PARALLELISM": "false"})
try:
    import agents
    import anthropic
    import cohere
    import instructor
    import litellm
    import openai
    import pydantic
    import pydantic_ai
    import tiktoken
    from haystack.components.agents import Agent as HaystackAgent
    from haystack.components.embedders import OpenAIDocumentEmbedder, OpenAITextEmbedder
    from haystack.components.generators.chat import OpenAIChatGenerator
    from haystack.dataclasses import ChatMessage as HaystackMessage
    from haystack.dataclasses import Document as HaystackDocument
    from haystack.tools import Tool as HaystackTool
    from haystack.utils import Secret
    from instructor.core import InstructorRetryException
    from langchain.agents import create_agent
    from langchain_cohere import CohereRerank as LangChainRerank
    from langchain_core.documents import Document as LangChainDocument
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_core.tools import tool as langchain_tool
    from langchain_openai import ChatOpenAI, OpenAIEmbeddings
    from llama_index.core import Document, SummaryIndex
    from llama_index.core.agent.workflow import FunctionAgent
    from llama_index.core.llms import ChatMessage as LlamaMessage
    from llama_index.core.tools import FunctionTool
    from llama_index.core.schema import NodeWithScore, TextNode
    from llama_index.embeddings.openai_like import OpenAILikeEmbedding
    from llama_index.llms.openai_like import OpenAILike
    from llama_index.postprocessor.cohere_rerank import CohereRerank as LlamaRerank
    from pydantic_ai.messages import ModelRequest, ModelResponse, ToolCallPart, ToolReturnPart, UserPromptPart
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider
except ImportError as e:
    other_python("KVBLEND_FRAMEWORKS_PYTHON")
    skip(f"the frameworks are not installed: {e}")

need(KVBLEND, WORKER)
QUESTIONS = "How far did the rivers rise?", "Which river rose most, and when?"
server = base = own = None
run = asyncio.new_event_loop().run_until_complete


Query = Annotated[str, pydantic.Field(max_length=20)]  # a small model's words have no end


class City(pydantic.BaseModel):
    """A city and how many people live there."""
    name: str = pydantic.Field(max_length=16)
    people: int = pydantic.Field(ge=0, le=99999999)


def passage(of):
    """What the retriever finds: each framework's own words, so that none finds another's KV."""
    draw = random.Random(of)
    words = ["".join(draw.choices("aeiou" + "bdklmnrst" * 2, k=5)) for _ in range(40)]
    return " ".join(f"The {' '.join(draw.choices(words, k=6))} rose by {draw.randrange(100)} metres." for _ in range(16))


def tokens(kind):
    return sum(v for _, labels, v in parse_metrics(server.metrics())["kvblend_tokens_total"][1] if labels["kind"] == kind)


def twice(of, ask):
    """ask(question, passage): the second time most of the passage is reused, by what the worker counts."""
    ask(QUESTIONS[0], passage(of))
    assert server.post("/v1/segments", {"texts": [passage(of)]}).status == 200
    before = tokens("reused") + tokens("prefix")
    ask(QUESTIONS[1], passage(of))
    assert tokens("reused") + tokens("prefix") > before + 300, (before, tokens("reused"), tokens("prefix"))


# ---- LangChain ----

def langchain(**kw):
    return ChatOpenAI(base_url=base, model=own, temperature=0, max_tokens=80, timeout=120, max_retries=0, **kw)


@langchain_tool
def find(query: Query) -> str:
    """Find passages in the archive of river reports."""
    return passage("a free agent")


def test_langchain_structured_output():
    ask = "Name a city and how many people live there. Answer in JSON."
    for method in ("function_calling", "json_schema"):
        got = langchain().with_structured_output(City, method=method).invoke(ask)
        assert isinstance(got, City), (method, got)
    raw = langchain(stop=["\n\n"]).with_structured_output(City, method="json_mode", include_raw=True).invoke(ask)["raw"]
    assert raw.content.lstrip().startswith("{"), raw


def test_langchain_tools():
    def ask(question, found):
        said = [HumanMessage(question)]
        call = langchain().bind_tools([find], tool_choice="any").invoke(said)
        (c,) = call.tool_calls[:1]
        assert c["name"] == "find" and isinstance(c["args"]["query"], str), call
        said += [call] + [ToolMessage(found, tool_call_id=x["id"]) for x in call.tool_calls]
        text = "".join(x.text for x in langchain().stream(said))
        assert text, text

    twice("LangChain", ask)


def test_langchain_agent():
    agent = create_agent(langchain(), tools=[find])
    said = {"messages": [HumanMessage("Find the report about rivers.")]}
    assert agent.invoke(said, {"recursion_limit": 8})["messages"][-1].content is not None

    async def streamed():
        return [x async for x in agent.astream(said, {"recursion_limit": 8}, stream_mode="messages")]

    assert run(streamed())


# ---- LlamaIndex ----

def llama():
    return OpenAILike(api_base=base, model=own, api_key="none", is_chat_model=True, is_function_calling_model=True,
                      context_window=8192, max_tokens=80, temperature=0, timeout=120, max_retries=0)


def look_up(query: Query) -> str:
    """Find passages in the archive of river reports."""
    return passage("a free agent")


def test_llamaindex_tools():
    def ask(question, found):
        llm, tool = llama(), FunctionTool.from_defaults(look_up)
        first = llm.chat_with_tools([tool], user_msg=question, tool_required=True)
        (call,) = llm.get_tool_calls_from_response(first)[:1]
        assert call.tool_name == "look_up" and isinstance(call.tool_kwargs["query"], str), call
        said = [LlamaMessage(role="user", content=question), first.message,
                LlamaMessage(role="tool", content=found, additional_kwargs={"tool_call_id": call.tool_id})]
        assert "".join(x.delta or "" for x in llm.stream_chat(said))

    twice("LlamaIndex", ask)


def test_llamaindex_agent():
    async def ask():
        return await FunctionAgent(tools=[look_up], llm=llama()).run("Find the report about rivers.", max_iterations=4)

    try:
        assert run(ask()) is not None
    except Exception as e:  # a small model may call for ever
        assert "Max iterations" in str(e), e


def test_llamaindex_query_engine_and_chat():
    def ask(question, found):
        index = SummaryIndex.from_documents([Document(text=found), Document(text=passage("LlamaIndex' second"))])
        assert str(index.as_query_engine(llm=llama()).query(question))

    twice("LlamaIndex' query engine", ask)
    chat = SummaryIndex.from_documents([Document(text=passage("a chat"))]).as_chat_engine(chat_mode="context", llm=llama())
    assert str(chat.chat(QUESTIONS[0])) and str(chat.chat(QUESTIONS[1]))


def test_llamaindex_structured_output():
    got = llama().as_structured_llm(City).complete("Name a city and how many people live there.").raw
    assert isinstance(got, City), got


# ---- Haystack ----

def haystack(**how):
    return OpenAIChatGenerator(api_key=Secret.from_token("none"), api_base_url=base, model=own, timeout=120, max_retries=0,
                               generation_kwargs={"temperature": 0, "max_tokens": 80, **how})


def haystack_tool():
    schema = {"type": "object", "properties": {"query": {"type": "string", "maxLength": 20}}, "required": ["query"]}
    return HaystackTool(name="find", description="Find passages in the archive.", parameters=schema,
                        function=lambda query: passage("a free agent"))


def test_haystack_tools():
    def ask(question, found):
        said = [HaystackMessage.from_user(question)]
        call = haystack(tool_choice="required").run(said, tools=[haystack_tool()])["replies"][0]
        assert call.tool_calls[0].tool_name == "find" and "query" in call.tool_calls[0].arguments, call
        said += [call] + [HaystackMessage.from_tool(found, origin=c) for c in call.tool_calls]
        assert haystack().run(said)["replies"][0].text

    twice("Haystack", ask)


def test_haystack_agent():
    agent = HaystackAgent(chat_generator=haystack(), tools=[haystack_tool()], max_agent_steps=3)
    assert agent.run([HaystackMessage.from_user("Find the report about rivers.")])["messages"]


# ---- instructor, pydantic-ai ----

def test_instructor():
    for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON, instructor.Mode.JSON_SCHEMA):
        client = instructor.from_openai(openai.OpenAI(base_url=base, max_retries=0, timeout=120), mode=mode)
        try:
            got = client.chat.completions.create(model=own, response_model=City, max_retries=0, temperature=0, max_tokens=120,
                                                 messages=[{"role": "user", "content": "A city, and its people."}])
            assert isinstance(got, City), (mode, got)
        except InstructorRetryException as e:  # any object will do there
            assert mode == instructor.Mode.JSON and "validation" in str(e), (mode, e)


def pydantic_model():
    return OpenAIChatModel(own, provider=OpenAIProvider(base_url=base, api_key="none"))


def test_pydantic_ai_output():
    agent = pydantic_ai.Agent(pydantic_model(), output_type=City, model_settings={"temperature": 0, "max_tokens": 120})
    assert isinstance(agent.run_sync("A city, and its people.").output, City)


def test_pydantic_ai_tools():
    """Its answer is a call of one of two tools that end the run, or of the one that finds."""
    def ask(question, found):
        agent = pydantic_ai.Agent(pydantic_model(), output_type=[City], model_settings={"temperature": 0, "max_tokens": 120})

        @agent.tool_plain
        def find_report(query: Query) -> str:
            """Find passages in the archive of river reports."""
            return found

        asked = [ModelRequest(parts=[UserPromptPart(question)]),
                 ModelResponse(parts=[ToolCallPart("find_report", {"query": "rivers"}, "call_0")]),
                 ModelRequest(parts=[ToolReturnPart("find_report", found, "call_0")])]
        try:
            assert agent.run_sync(message_history=asked, usage_limits=pydantic_ai.UsageLimits(request_limit=3)).output
        except (pydantic_ai.UsageLimitExceeded, pydantic_ai.UnexpectedModelBehavior):
            pass  # a small model may call for ever

    twice("pydantic-ai", ask)


# ---- LiteLLM ----

def test_litellm():
    find_tool = {"type": "function", "function": {"name": "find", "description": "Find passages.", "parameters": {
        "type": "object", "properties": {"query": {"type": "string", "maxLength": 20}}, "required": ["query"]}}}

    def ask(question, found):
        how = dict(model=f"openai/{own}", api_base=base, api_key="none", temperature=0, max_tokens=80, num_retries=0)
        said = [{"role": "user", "content": question}]
        first = litellm.completion(messages=said, tools=[find_tool], tool_choice="required", **how).choices[0].message
        assert first.tool_calls[0].function.name == "find", first
        said += [first.model_dump()] + [{"role": "tool", "tool_call_id": c.id, "content": found} for c in first.tool_calls]
        assert litellm.completion(messages=said, **how).choices[0].message.content

    twice("LiteLLM", ask)


# ---- OpenAI's Agents SDK over /v1/responses, Anthropic's SDK over /v1/messages ----

def test_openai_agents():
    def ask(question, found):
        called = []

        @agents.function_tool
        def find_report(query: Query) -> str:
            """Find passages in the archive of river reports."""
            called.append(query)
            return found

        client = openai.AsyncOpenAI(base_url=base, max_retries=0, timeout=120)
        agent = agents.Agent(name="archivist", instructions="Answer from the archive.", tools=[find_report],
                             model=agents.OpenAIResponsesModel(model=own, openai_client=client),
                             model_settings=agents.ModelSettings(tool_choice="required", temperature=0, max_tokens=80,
                                                                 parallel_tool_calls=False))
        try:
            run(agents.Runner.run(agent, question, max_turns=3))
        except agents.MaxTurnsExceeded:
            pass  # after the first call it is free to call again
        assert called, question

    twice("OpenAI's agents", ask)


def test_openai_agents_streamed():
    async def events():
        client = openai.AsyncOpenAI(base_url=base, max_retries=0, timeout=120)
        agent = agents.Agent(name="teller", model=agents.OpenAIResponsesModel(model=own, openai_client=client),
                             model_settings=agents.ModelSettings(max_tokens=20, temperature=0))
        types = []
        try:
            async for e in agents.Runner.run_streamed(agent, "Say hello to the river.").stream_events():
                types.append(e.data.type if e.type == "raw_response_event" else e.type)
        except agents.ModelBehaviorError as e:
            assert "max_output_tokens" in str(e), e  # it says much
        return types

    types = run(events())
    assert types.count("response.output_text.delta") > 3 and "response.created" in types, types


def test_anthropic():
    client = anthropic.Anthropic(base_url=base.removesuffix("/v1"), api_key="none", max_retries=0, timeout=120)
    tool = {"name": "find", "description": "Find passages in the archive.", "input_schema": {
        "type": "object", "properties": {"query": {"type": "string", "maxLength": 20}}, "required": ["query"]}}

    def ask(question, found):
        said = [{"role": "user", "content": question}]
        first = client.messages.create(model=own, max_tokens=80, tools=[tool], messages=said,
                                       tool_choice={"type": "any", "disable_parallel_tool_use": True})
        use = [b for b in first.content if b.type == "tool_use"]
        assert first.stop_reason == "tool_use" and isinstance(use[0].input["query"], str), first
        said += [{"role": "assistant", "content": first.content},
                 {"role": "user", "content": [{"type": "tool_result", "tool_use_id": u.id, "content": found} for u in use]}]
        with client.messages.stream(model=own, max_tokens=20, tools=[tool], tool_choice={"type": "none"},
                                    messages=said) as s:
            assert "".join(s.text_stream)
        assert client.messages.count_tokens(model=own, messages=said[:1]).input_tokens > 3

    twice("Anthropic", ask)


# ---- embeddings ----

def test_embeddings():
    """Vectors of an own encoder, through what each framework has for an OpenAI-compatible server."""
    folder = os.path.join(ROOT, "tests", "data", "encoders", "bert-cls")
    with open(folder + ".json", encoding="utf-8") as f:
        golden = [t for t in json.load(f)["texts"] if 0 < len(t["text"]) < 200]
    texts = [t["text"] for t in golden]
    with gateway("--dtype", "f32", model=folder) as g:
        at = f"http://127.0.0.1:{g.port}/v1"
        chain = OpenAIEmbeddings(model="bert-cls", base_url=at, api_key="none", max_retries=0, check_embedding_ctx_length=False)
        index = OpenAILikeEmbedding(model_name="bert-cls", api_base=at, api_key="none", max_retries=0, embed_batch_size=3)
        stack = dict(model="bert-cls", api_base_url=at, api_key=Secret.from_token("none"))
        found = OpenAIDocumentEmbedder(progress_bar=False, **stack).run([HaystackDocument(content=t) for t in texts])
        lite = litellm.embedding(model="openai/bert-cls", input=texts, api_base=at, api_key="none", encoding_format="float")
        for got in (chain.embed_documents(texts), [chain.embed_query(t) for t in texts],
                    index.get_text_embedding_batch(texts), [index.get_query_embedding(t) for t in texts],
                    [d.embedding for d in found["documents"]], [d["embedding"] for d in lite.data],
                    [OpenAITextEmbedder(**stack).run(t)["embedding"] for t in texts]):
            assert len(got) == len(golden)
            assert all(abs(x - y) < 1e-4 for v, t in zip(got, golden) for x, y in zip(v, t["vector"], strict=True))


def test_langchain_sends_ids_of_its_own():
    """Unless it is told not to: ids of OpenAI's tokenizer, which mean something else here."""
    folder = os.path.join(ROOT, "tests", "data", "encoders", "bert-cls")
    ids = tiktoken.Encoding("bytes", pat_str="(?s).+", mergeable_ranks={bytes([i]): 5000 + i for i in range(256)},
                            special_tokens={})
    fetch = tiktoken.encoding_for_model, tiktoken.get_encoding
    tiktoken.encoding_for_model = tiktoken.get_encoding = lambda name: ids  # which would be fetched
    try:
        with gateway(model=folder) as g:
            e = OpenAIEmbeddings(model="bert-cls", base_url=f"http://127.0.0.1:{g.port}/v1", api_key="none", max_retries=0)
            try:
                said = e.embed_query("a river")
            except openai.BadRequestError as refusal:
                said = str(refusal)
            assert "must send texts" in said, said
    finally:
        tiktoken.encoding_for_model, tiktoken.get_encoding = fetch


# ---- reranking ----

def ranked_twice(of, rank):
    """rank(question, passages) -> [(passage, score)]: best first, and the second question loads what it is about."""
    passages = [passage(f"{of} {i}") for i in range(3)]

    def ask(question):
        got = rank(question, passages)
        scores = [score for _, score in got]
        assert scores == sorted(scores, reverse=True) and all(0 < s < 1 for s in scores), got
        assert len({text for text, _ in got} & set(passages)) == len(got) == 2, got

    ask(QUESTIONS[0])
    before = tokens("prefix")
    ask(QUESTIONS[1])
    assert tokens("prefix") > before + 3 * 150, (before, tokens("prefix"))  # of each passage far more


def test_cohere():
    root = base.removesuffix("/v1")
    two = cohere.ClientV2(api_key="none", base_url=root, timeout=120)
    one = cohere.Client(api_key="none", base_url=root, timeout=120)

    def rank(question, passages):
        r = two.rerank(model=own, query=question, documents=passages, top_n=2, max_tokens_per_doc=4096)
        assert r.id and r.meta.tokens.input_tokens > 0
        return [(passages[x.index], x.relevance_score) for x in r.results]

    def rank_as_before(question, passages):
        r = one.rerank(model=own, query=question, documents=[{"text": p} for p in passages], top_n=2, return_documents=True)
        assert all(x.document.text == passages[x.index] for x in r.results)
        return [(x.document.text, x.relevance_score) for x in r.results]

    ranked_twice("Cohere", rank)
    ranked_twice("Cohere's first API", rank_as_before)
    try:
        two.rerank(model=own, query="", documents=["x"])
        raise AssertionError("an empty query is refused")
    except cohere.errors.BadRequestError as e:
        assert e.body["error"]["param"] == "query", e


def test_langchain_rerank():
    ranker = LangChainRerank(cohere_api_key="none", base_url=base.removesuffix("/v1"), model=own, top_n=2)
    ranked_twice("LangChain", lambda question, passages: [
        (d.page_content, d.metadata["relevance_score"])
        for d in ranker.compress_documents([LangChainDocument(p) for p in passages], question)])


def test_llamaindex_rerank():
    ranker = LlamaRerank(api_key="none", base_url=base.removesuffix("/v1"), model=own, top_n=2, max_retries=1)
    ranked_twice("LlamaIndex", lambda question, passages: [
        (n.node.text, n.score)
        for n in ranker.postprocess_nodes([NodeWithScore(node=TextNode(text=p), score=0.5) for p in passages], query_str=question)])


def test_litellm_rerank():
    def ranker(model, url):
        def rank(question, passages):
            r = litellm.rerank(model=model, api_base=url, api_key="none", query=question, documents=passages, top_n=2,
                               return_documents=False)
            return [(passages[x["index"]], x["relevance_score"]) for x in r.results]
        return rank

    ranked_twice("LiteLLM as Cohere", ranker(f"cohere/{own}", base.removesuffix("/v1")))
    ranked_twice("LiteLLM as Jina", ranker(f"jina_ai/{own}", base))
    ranked_twice("LiteLLM as vLLM", ranker(f"hosted_vllm/{own}", base))


def test_a_cross_encoder():
    """The same clients, of a model that does nothing else: its scores are those that sentence-transformers gives."""
    model = os.path.join(ROOT, "tests", "data", "encoders", "cross-bert")
    with open(model + ".json", encoding="utf-8") as f:
        pairs = [p for p in json.load(f)["pairs"] if p["query"] == "x" and len(p["document"]) < 50]
    documents = [p["document"] for p in pairs]
    with gateway(model=model) as g:
        root = f"http://127.0.0.1:{g.port}"
        cohere_results = cohere.ClientV2(api_key="none", base_url=root, timeout=120).rerank(
            model="cross-bert", query="x", documents=documents).results
        got = {"Cohere": [(x.index, x.relevance_score) for x in cohere_results]}
        for name, url in (("cohere", root), ("jina_ai", root + "/v1"), ("hosted_vllm", root + "/v1")):
            r = litellm.rerank(model=f"{name}/cross-bert", api_base=url, api_key="none", query="x", documents=documents,
                               return_documents=False)
            got["LiteLLM as " + name] = [(x["index"], x["relevance_score"]) for x in r.results]
        ranker = LangChainRerank(cohere_api_key="none", base_url=root, model="cross-bert", top_n=len(documents))
        got["LangChain"] = [(x["index"], x["relevance_score"]) for x in ranker.rerank(documents, "x")]
    for client, ranked in got.items():
        assert [s for _, s in ranked] == sorted((s for _, s in ranked), reverse=True), (client, ranked)
        assert sorted(i for i, _ in ranked) == list(range(len(pairs))), (client, ranked)
        assert all(abs(s - pairs[i]["score"]) < 1e-4 for i, s in ranked), (client, ranked, pairs)


if __name__ == "__main__":
    with gateway(model=real_model()) as server:
        base = f"http://127.0.0.1:{server.port}/v1"
        own = server.get("/v1/models").json()["data"][0]["id"]
        main(globals())
