"""A byte-level tokenizer: tokens 0..255 are bytes, and a few specials follow."""

import codecs

__all__ = ["ASSISTANT", "BOS", "END_OF_TURN", "EOS", "ROLES", "VOCAB", "Detokenizer", "chat_tokens", "decode_token"]
__all__ += ["decode", "encode"]

BOS, EOS, SYSTEM, USER, ASSISTANT, END_OF_TURN = 256, 257, 258, 259, 260, 261
VOCAB = 272
ROLES = {"system": SYSTEM, "developer": SYSTEM, "user": USER, "assistant": ASSISTANT, "tool": USER}
_NAMES = {
    BOS: "<|begin|>",
    EOS: "<|end|>",
    SYSTEM: "<|system|>",
    USER: "<|user|>",
    ASSISTANT: "<|assistant|>",
    END_OF_TURN: "<|end_of_turn|>",
}


def encode(text: str, *, add_special_tokens: bool = True) -> list[int]:
    """Tokens of a text."""
    return ([BOS] if add_special_tokens else []) + list(text.encode("utf-8", errors="surrogatepass"))


def decode(tokens: list[int]) -> str:
    """Text of tokens; specials give none, broken UTF-8 the replacement character."""
    return bytes(token for token in tokens if token < 256).decode("utf-8", errors="replace")


def decode_token(token: int) -> str:
    """How one token is shown alone. Bytes above 127 share one spelling, as in every byte-level vocabulary."""
    if token < 128:
        return chr(token)
    return _NAMES.get(token, f"<|{token}|>") if token >= 256 else "\ufffd"


def chat_tokens(messages: list[tuple[str, str]], *, add_generation_prompt: bool = True) -> list[int]:
    """Tokens of a conversation of (role, text)."""
    tokens = [BOS]
    for role, text in messages:
        tokens += [ROLES[role], *encode(text, add_special_tokens=False), END_OF_TURN]
    return [*tokens, ASSISTANT] if add_generation_prompt else tokens


class Detokenizer:
    """Text that grows with the tokens: a character comes out when its last byte is in."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token: int) -> str:
        """What this token adds."""
        return self._decoder.decode(bytes([token])) if token < 256 else ""

    def flush(self) -> str:
        """What is left at the end."""
        return self._decoder.decode(b"", final=True)
