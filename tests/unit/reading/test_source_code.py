"""Source code cut by its grammar: a section for each symbol, and every line of the code once."""

import re

import pytest

from pair.engine.write.chunking import split
from pair.reading.reader import read

PYTHON = '''\
"""The module."""
import os

# How much is kept.
LIMIT = 3


@cache
class Shop(Base):  # noqa: X
    """Sells."""

    size = 1

    @property
    def open(self, when: int = 1) -> bool:
        """Say whether it is open."""

        def inner():
            return when
        return inner() > 0

    other = 2

# Starts it.
async def start(
    port: int,
    *hosts: str,
) -> None:
    pass


if __name__ == "__main__":
    start(1)
'''
CODE: dict[str, tuple[str, list[str]]] = {
    "shop.py": (
        PYTHON,
        [
            "# shop.py",
            "## class Shop(Base)",
            "### def open(self, when: int = 1) -> bool",
            "## class Shop(Base)",
            "## async def start( port: int, *hosts: str, ) -> None",
            "# shop.py",
        ],
    ),
    "shop.js": (
        """\
const a = 1;

/** Adds. */
function add(x, y) {
  return x + y;
}

export default class Shop {
  open() {
    return 1;
  }
}
const sum = (xs) => {
  return 1;
};
""",
        ["# shop.js", "## function add(x, y)", "## export default class Shop", "### open()", "## const sum = (xs)"],
    ),
    "shop.ts": (
        """\
/** A shop. */
export abstract class Shop<T> implements Sells {
  add(item: T): void { // quick
    x();
  }
}
export interface Sells {
  sell(): Promise<void>;
}
export type Two = [number, number];
namespace Deep {
  export function inner(): void {
    return;
  }
}
""",
        [
            "# shop.ts",
            "## export abstract class Shop<T> implements Sells",
            "### add(item: T): void",
            "## export interface Sells",
            "## export type Two = [number, number]",
            "## namespace Deep",
            "### export function inner(): void",
        ],
    ),
    "shop.go": (
        """\
package shop

// Server serves.
type Server struct {
	Port int
}

// Start starts it.
// It blocks.
func (s *Server) Start(ctx context.Context) error {
	return nil
}
""",
        ["# shop.go", "## type Server struct", "## func (s *Server) Start(ctx context.Context) error"],
    ),
    "shop.rs": (
        """\
use std::fmt;

/// A point.
#[derive(Debug)]
pub struct Point {
    x: i32,
}

impl fmt::Display for Point {
    fn fmt(&self) -> fmt::Result {
        Ok(())
    }
}
""",
        ["# shop.rs", "## pub struct Point", "## impl fmt::Display for Point", "### fn fmt(&self) -> fmt::Result"],
    ),
    "Shop.java": (
        """\
package x;

/** Doc. */
public class Shop extends Base {
    private int x;

    public int get(String a,
                   int b) throws E {
        return x;
    }
}
""",
        ["# Shop.java", "## public class Shop extends Base", "### public int get(String a, int b) throws E"],
    ),
    "shop.c": (
        """\
#include <stdio.h>

typedef struct node {
    int value;
} node_t;

static int counter = 0;

/* Adds two
 * numbers. */
static int
add(int a, int b)
{
    return a + b;
}
""",
        ["# shop.c", "## typedef struct node", "# shop.c", "## static int add(int a, int b)"],
    ),
    "shop.hpp": (
        """\
#ifndef A
#define A
namespace geo {
// A shape.
template <typename T>
class Shape : public Base {
 public:
  void draw() {
    paint();
  }
};
int add(int a, int b);
}
#endif
""",
        ["# shop.hpp", "## namespace geo", "### class Shape : public Base", "#### void draw()", "## namespace geo"],
    ),
    "Shop.cs": (
        """\
using System;

namespace Shop.Core
{
    public class Cart : ICart
    {
        public Cart(int count)
        {
            Count = count;
        }
    }
}
""",
        ["# Shop.cs", "## namespace Shop.Core", "### public class Cart : ICart", "#### public Cart(int count)"],
    ),
    "shop.rb": (
        """\
require "x"

module Shop
  # A cart.
  class Cart < Base
    def self.build(*args)
      new(*args)
    end
  end
end

Shop::Cart.build
""",
        ["# shop.rb", "## module Shop", "### class Cart < Base", "#### def self.build(*args)", "# shop.rb"],
    ),
    "shop.php": (
        """\
<?php
namespace App;

/** Doc. */
class Cart implements Countable
{
    public function add(Item $item): void
    {
        $this->items[] = $item;
    }
}
?>
""",
        [
            "# shop.php",
            "## namespace App",
            "## class Cart implements Countable",
            "### public function add(Item $item): void",
        ],
    ),
    "shop.sh": (
        """\
#!/bin/sh
set -e

# Prints usage.
usage() {
  echo "usage"
}

function build {
  make
}

usage "$@"
""",
        ["# shop.sh", "## usage()", "## function build", "# shop.sh"],
    ),
}


def split_sections(text: str) -> tuple[list[str], list[str]]:
    """Return the headings, and the lines of code that are not blank."""
    headings, lines = [], []
    is_code = False
    for line in text.splitlines():
        if re.fullmatch(r"`{3,}\w*", line):
            is_code = not is_code
        elif is_code:
            lines += [line] if line.strip() else []
        elif line:
            headings.append(line)
    return headings, lines


@pytest.mark.parametrize("name", CODE)
def test_code_has_a_section_for_each_symbol_and_every_line_once(name: str) -> None:
    source, expected = CODE[name]
    reading = read(source.encode(), name)
    headings, lines = split_sections(reading.text)
    assert headings == expected
    assert lines == [line for line in source.splitlines() if line.strip()]
    assert reading.title == ""


def test_comments_and_decorators_are_in_the_section_of_their_symbol() -> None:
    text = read(PYTHON.encode(), "shop.py").text
    assert "## class Shop(Base)\n\n```py\n@cache\nclass Shop(Base):  # noqa: X\n" in text
    assert "-> None\n\n```py\n# Starts it.\nasync def start(" in text
    assert "### def open(self, when: int = 1) -> bool\n\n```py\n    @property\n    def open(" in text


def test_the_context_of_a_chunk_names_the_file_and_the_symbol() -> None:
    code = PYTHON.replace("return when", "\n".join([*(f"            value_{number} = when" for number in range(40))]))
    text = read(code.encode(), "shop.py").text
    chunk = next(chunk for chunk in split(text, 500) if "value_30 = when" in chunk.text)
    assert chunk.context == "shop.py > class Shop(Base) > def open(self, when: int = 1) -> bool"
    assert text[chunk.start : chunk.end] == chunk.text


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.py", b"# comment\nprint(1)\n", "```py\n# comment\nprint(1)\n```"),
        ("a.py", b"", ""),
        ("a.unknown.toml", b"[a]\nb = 1\n", "```toml\n[a]\nb = 1\n```"),
        (
            "a.js",
            b"function a(){}function b(){}",
            "# a.js\n\n## function a()\n\n```js\nfunction a(){}function b(){}\n```",
        ),
    ],
)
def test_code_without_symbols_is_one_block(name: str, content: bytes, expected: str) -> None:
    assert read(content, name).text == expected


def test_no_line_of_broken_code_is_lost() -> None:
    code = "class A {\n```\ndef f(:\n  ]]]\n\nclass B:\n    def g(self):\n```\n  pass\n}}}\n"
    for name in ("a.py", "a.js", "a.cpp", "a.rb", "a.sh"):
        text = read(code.encode(), name).text
        position = 0
        for line in filter(str.strip, code.splitlines()):
            position = text.index(line, position) + len(line)


def test_a_declared_type_of_code_and_windows_line_ends_change_nothing() -> None:
    text = read(PYTHON.encode(), "shop.py").text
    assert read(PYTHON.encode(), "shop.py", "text/x-python").text == text
    assert read(PYTHON.encode(), "shop.py", "text/plain").text == text
    assert read(PYTHON.replace("\n", "\r\n").encode(), "shop.py").text == text
    assert read(PYTHON.encode("utf-16"), "shop.py").text == text
