"""Conversion between ``snake_case`` and ``camelCase``."""

from __future__ import annotations


class cases:  # noqa: N801 - a public name
    """Convert names between Python style and the style of JSON and Kubernetes."""

    @staticmethod
    def camel_to_snake(name: str) -> str:
        """Convert ``podIP`` to ``pod_ip``.

        >>> cases.camel_to_snake("nodeSelector"), cases.camel_to_snake("HTTPProxy"), cases.camel_to_snake("podIP")
        ('node_selector', 'http_proxy', 'pod_ip')
        """
        parts: list[str] = []
        for i, char in enumerate(name):
            before = name[i - 1] if i else ""
            after = name[i + 1 : i + 2]
            starts_word = char.isupper() and before not in ("", "_") and (not before.isupper() or after.islower())
            parts.append(f"_{char.lower()}" if starts_word else char.lower())
        return "".join(parts)

    @staticmethod
    def option(name: str) -> str:
        """Normalize the name of an option to ``snake_case``.

        >>> cases.option("mailType"), cases.option("mail-type"), cases.option("mail_type")
        ('mail_type', 'mail_type', 'mail_type')
        """
        return (name if name.islower() else cases.camel_to_snake(name)).replace("-", "_")

    @staticmethod
    def snake_to_camel(name: str) -> str:
        """Convert ``node_selector`` to ``nodeSelector``.

        >>> cases.snake_to_camel("node_selector"), cases.snake_to_camel("name")
        ('nodeSelector', 'name')
        """
        first, *rest = name.split("_")
        return first + "".join(word[:1].upper() + word[1:] for word in rest)
