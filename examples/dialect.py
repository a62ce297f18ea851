"""A dialect of one's own: how tags are sent to a server that the client does not know (docs/client/dialects.md)."""

from continuum_client import OpenAI


class House:
    name = "house"

    def body(self, tags, path, output_tokens):
        return {"metadata": {"run": tags.program_id}}

    def release(self, program_id):
        return None  # or continuum_client.dialects.Release("/path/at/the/root", {"id": program_id})


client = OpenAI(base_url="http://localhost:8000/v1", api_key="none", dialect=House())
