"""Shell scripts, and programs in other languages."""

from __future__ import annotations

from collections.abc import Iterator

from tests.recorded.failures.make.cases import Case

SCRIPTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "not-found": ("echo starting\nnosuchtool --version\n", ("nosuchtool: command not found",)),
    "not-executable": ("touch tool\n./tool\n", ("./tool: Permission denied",)),
    "exec-dir": ("exec /etc\n", ("/etc",)),
    "set-e": ("set -e\nls /nosuch/data\necho never\n", ("cannot access '/nosuch/data'",)),
    "set-u": ("set -u\necho $NOSUCH\n", ("NOSUCH: unbound variable",)),
    "set-x": ("set -ex\ncd .\ncat /nosuch/config\n", ("cat: /nosuch/config: No such file or directory",)),
    "pipe": ("set -o pipefail\ncat /nosuch/a | sort\n", ("cat: /nosuch/a",)),
    "syntax": ("if true; then\necho x\n", ("syntax error",)),
    "exit-3": ("echo 'step 1'\nexit 3\n", ()),
    "exit-words": ("echo 'fatal: no checkpoint in /ckpt' >&2\nexit 4\n", ("fatal: no checkpoint in /ckpt",)),
    "exit-stdout": ("echo 'fatal: no checkpoint in /ckpt'\nexit 4\n", ("fatal: no checkpoint in /ckpt",)),
    "python-in-shell": ("set -e\npython3 -c 'raise ValueError(\"bad lr\")'\n", ("ValueError: bad lr",)),
    "python-then-words": (
        "python3 -c '1/0' || { echo 'training failed, see above' >&2; exit 1; }\n",
        ("ZeroDivisionError",),
    ),
    "make": ("printf 'all:\\n\\t@echo no rule for data >&2; false\\n' > Makefile\nmake\n", ("no rule for data",)),
    "git": ("git clone /nosuch/repo\n", ("repository '/nosuch/repo' does not exist",)),
    "tar": ("echo x > a.tgz\ntar xzf a.tgz\n", ("tar:",)),
    "curl": ("curl -sSf http://localhost:9/x\n", ("Failed to connect to localhost",)),
    "timeout": ("timeout 0.3 sleep 9\n", ()),
    "bad-cd": ("set -e\ncd /nosuch\n", ("/nosuch: No such file or directory",)),
    "pip": ("python3 -m pip install --no-index nosuch-package\n", ("nosuch-package",)),
    "disk-full": ("set -e\nhead -c 9999 /dev/zero > /dev/full\n", ("No space left on device",)),
    "shebang": ("printf '#!/nosuch/python\\nx\\n' > a && chmod +x a && ./a\n", ("./a",)),
}
COMPILED: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "c-segv": ("gcc -xc -o a -", "int main(void) { int *p = 0; return *p; }", ()),
    "c-assert": (
        "gcc -xc -o a -", "#include <assert.h>\nint main(void) { assert(1 == 2); }", ("Assertion `1 == 2' failed",)
    ),
    "c-free": ("gcc -w -xc -o a -", "#include <stdlib.h>\nint main(void) { char *p = malloc(9); free(p); free(p); }",
               ("double free",)),
    "c-fpe": ("gcc -O0 -w -xc -o a -", "int main(int n, char **v) { return 7 / (n - 1); }", ()),
    "cpp-throw": ("g++ -xc++ -o a -", '#include <stdexcept>\nint main() { throw std::runtime_error("bad data"); }',
                  ("std::runtime_error: bad data",)),
    "cpp-int": ("g++ -xc++ -o a -", "int main() { throw 3; }", ("terminate called",)),
    "cpp-at": ("g++ -xc++ -o a -", "#include <vector>\nint main() { std::vector<int> v(3); return v.at(7); }",
               ("std::out_of_range", "_M_range_check")),
    "asan": ("g++ -g -fsanitize=address -xc++ -o a -", "int main() { int *p = new int[3]; delete[] p; return p[1]; }",
             ("AddressSanitizer: heap-use-after-free",)),
    "rust-panic": ("rustc -o a -", 'fn main() { let v = vec![1]; let i = v.len() + 3; println!("{}", v[i]); }',
                   ("index out of bounds",)),
    "rust-unwrap": ("rustc -o a -", 'fn main() { std::fs::read("/nosuch").unwrap(); }', ("No such file or directory",)),
}  # fmt: skip


def cases() -> list[Case]:
    return [*_shell(), *_compiled(), *_interpreted()]


def _shell() -> Iterator[Case]:
    for name, (program, said) in SCRIPTS.items():
        yield Case(id=f"sh-{name}", by="sh", program=program, said=said)
    for name, number, kind in (("SIGKILL", 9, "unknown"), ("SIGSEGV", 11, "error"), ("SIGTERM", 15, "cancelled")):
        program = f"echo step 5\nsh -c 'kill -{number} $$'\n"
        yield Case(id=f"sh-child-{name}", by="sh", program=program, kind=kind, signal=name, aftermath=number == 15)
        program = f"python3 -c 'import os; os.kill(os.getpid(), {number})' && echo done\nexit $?\n"
        yield Case(id=f"sh-python-{name}", by="sh", program=program, kind=kind, signal=name, aftermath=number == 15)
    yield Case(
        id="sh-exec-format", by="sh", program="printf '\\177ELF junk' > a; chmod +x a; ./a\n", kind="image",
        said=("Exec format error",),
    )  # fmt: skip
    yield Case(
        id="sh-bus", by="sh", signal="SIGBUS",
        program="exec python3 -c \"import mmap; f = open('a', 'w+b'); f.truncate(4096); m = mmap.mmap(f.fileno(), 4096); "
        "f.truncate(0); m[0] = 1\"\n",
    )  # fmt: skip
    yield Case(
        id="sh-fork-memory", by="sh", kind="oom", said=("MemoryError",),
        program="ulimit -v 30000\npython3 -c 'x = bytearray(1 << 29)' || perl -e '$x = \"a\" x (1 << 30)'\n",
    )  # fmt: skip


def _compiled() -> Iterator[Case]:
    signals = {"c-segv": "SIGSEGV", "c-fpe": "SIGFPE", "c-assert": "SIGABRT", "c-free": "SIGABRT"}
    for name, (compiler, source, said) in COMPILED.items():
        program = f"{compiler} <<'END' && exec ./a\n{source}\nEND\n"
        signal = signals.get(name, "SIGABRT" if name.startswith("cpp") else "")
        yield Case(id=name, by="sh", program=program, said=said, signal=signal)
    go = 'package main\nfunc main() { var m map[string]int; m["a"] = 1 }\n'
    program = f"cat > a.go <<'END'\n{go}END\ngo build -o a a.go && exec ./a\n"
    cache = {"GOCACHE": "/tmp/go-cache-of-failures", "GOFLAGS": "-mod=mod"}
    yield Case(id="go-panic", by="sh", program=program, env=cache, said=("panic: assignment to entry in nil map",))
    memory = "#include <new>\nint main() { for (;;) new char[1 << 30]; }"
    yield Case(
        id="cpp-bad-alloc", by="sh", kind="oom", said=("std::bad_alloc",), signal="SIGABRT",
        program=f"g++ -xc++ -o a - <<'END' && ulimit -v 4000000 && exec ./a\n{memory}\nEND\n",
    )  # fmt: skip
    memory = "fn main() { let mut v: Vec<Vec<u8>> = vec![]; loop { v.push(vec![1; 1 << 30]); } }"
    yield Case(
        id="rust-memory", by="sh", kind="oom", said=("memory allocation of",), signal="SIGABRT",
        program=f"rustc -o a - <<'END' && ulimit -v 4000000 && exec ./a\n{memory}\nEND\n",
    )  # fmt: skip


def _interpreted() -> Iterator[Case]:
    java = "class A { public static void main(String[] a) { Integer.parseInt(null); } }"
    yield Case(
        id="java-throw", by="sh", program=f"echo '{java}' > A.java && exec java -Xmx64m A.java\n",
        said=("java.lang.NumberFormatException",),
    )  # fmt: skip
    java = "class A { public static void main(String[] a) { long[] x = new long[1 << 28]; } }"
    yield Case(
        id="java-memory", by="sh", program=f"echo '{java}' > A.java && exec java -Xmx64m A.java\n", kind="oom",
        said=("java.lang.OutOfMemoryError: Java heap space",),
    )  # fmt: skip
    yield Case(
        id="node-throw", by="sh", program="exec node -e 'throw new Error(\"bad row\")'\n", said=("Error: bad row",)
    )
    yield Case(id="perl-die", by="sh", program="exec perl -e 'die \"bad row\"'\n", said=("bad row at -e line 1",))
