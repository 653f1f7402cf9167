"""Drives a gateway with the OpenAI Python SDK. Arguments: its base URL, a model it serves, a good key, a bad key.

Prints one JSON object: for each step `true`, or what was wrong. The test that runs this reads nothing else.
"""

import json
import sys
import time

import openai

base, model, good_key, bad_key = sys.argv[1:5]
client = openai.OpenAI(base_url=base + "/v1", api_key=good_key, max_retries=0, timeout=30)
messages = [{"role": "user", "content": "hello there"}]
done = {}


def step(function):
    try:
        answer = function()
        done[function.__name__] = True if answer is None else answer
    except Exception as error:
        done[function.__name__] = f"{type(error).__name__}: {error}"
    return function


def same(got, wanted):
    return None if got == wanted else f"got {got!r}, wanted {wanted!r}"


@step
def sdk_version():
    return None if tuple(map(int, openai.__version__.split(".")[:2])) >= (1, 0) else openai.__version__


@step
def models():
    return None if model in [entry.id for entry in client.models.list()] else "the model is not listed"


@step
def retrieve_model():
    return same(client.models.retrieve(model).id, model)


@step
def chat():
    answer = client.chat.completions.create(model=model, messages=messages, max_tokens=5)
    return None if answer.choices[0].message.content and answer.usage.completion_tokens > 0 else repr(answer)


@step
def chat_stream():
    stream = client.chat.completions.create(
        model=model, messages=messages, max_tokens=5, stream=True, stream_options={"include_usage": True}
    )
    text, usage, finish = "", None, None
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            finish = choice.finish_reason or finish
    return None if text and usage and finish else f"text {text!r}, usage {usage!r}, finish {finish!r}"


@step
def completions():
    answer = client.completions.create(model=model, prompt="hello", max_tokens=5)
    return None if answer.choices[0].text else repr(answer)


@step
def completions_stream():
    text = "".join(c.choices[0].text for c in client.completions.create(model=model, prompt="x", max_tokens=5, stream=True) if c.choices)
    return None if text else "no text"


@step
def unknown_fields_pass():
    answer = client.chat.completions.create(
        model=model, messages=messages, max_tokens=2, extra_body={"priority": 3, "my_own": {"z": 1, "a": 2}}
    )
    return None if answer.choices else repr(answer)


@step
def request_id_is_shown():
    raw = client.chat.completions.with_raw_response.create(
        model=model, messages=messages, max_tokens=1, extra_headers={"x-request-id": "sdk-1"}
    )
    return same(raw.headers.get("x-request-id"), "sdk-1")


@step
def unknown_model_is_not_found():
    try:
        client.chat.completions.create(model="no-such-model", messages=messages)
        return "no error"
    except openai.NotFoundError as error:
        return same((error.status_code, error.code), (404, "model_not_found"))


@step
def bad_request():
    try:
        client.chat.completions.create(model=model, messages=messages, extra_body={"max_tokens": "many"})
        return "no error"
    except openai.BadRequestError as error:
        return same((error.status_code, error.type), (400, "invalid_request_error"))


@step
def bad_key_is_refused():
    if not bad_key:
        return None
    try:
        openai.OpenAI(base_url=base + "/v1", api_key=bad_key, max_retries=0).models.list()
        return "no error"
    except openai.AuthenticationError as error:
        return same((error.status_code, error.code), (401, "unauthorized"))


@step
def cancel_mid_stream():
    stream = client.chat.completions.create(
        model=model, messages=messages, max_tokens=4000, stream=True, extra_headers={"x-request-id": "sdk-cancel"}
    )
    for count, _ in enumerate(stream):
        if count == 3:
            stream.close()
            break
    time.sleep(0.1)
    return None


print(json.dumps(done))
