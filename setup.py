"""What pyproject.toml can't say: how the native library is built and named, and the README as a package index shows it.

The library is plain C that is loaded by ctypes. It belongs to no version of Python, so neither does its file's name nor
the wheel's tag. Where there is no compiler, or for another processor, the wheel has no library and fits everywhere;
decode then runs on torch's kernels.
"""

import platform
import re
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

NATIVE = Path("models/decoder/native")
LIBRARY = Extension(
    "models.decoder.native._library",
    sources=[f"{NATIVE}/decoder.c"],
    depends=sorted(str(header) for header in NATIVE.glob("*.h")),
    extra_compile_args=[
        *("-std=gnu11", "-O2", "-Wall", "-Wextra", "-fno-math-errno", "-pthread"),
        *("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni", "-mf16c", "-mfma"),
    ],
    extra_link_args=["-pthread"],
    optional=True,
)
RELATIVE_LINK = re.compile(r"\[([^\]]+)\]\((?!https?://|#)[^)]+\)")


class BuildLibrary(build_ext):
    def get_ext_filename(self, fullname: str) -> str:
        return f"{Path(*fullname.split('.'))}.so"


class Wheel(bdist_wheel):
    def run(self) -> None:
        self.run_command("build_ext")
        built = self.get_finalized_command("build_ext")
        if not any(Path(output).exists() for output in built.get_outputs()):
            self.distribution.ext_modules = []
            self.root_is_pure = True
        super().run()

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


setup(
    ext_modules=[LIBRARY] if platform.machine().lower() in ("x86_64", "amd64") else [],
    cmdclass={"build_ext": BuildLibrary, "bdist_wheel": Wheel},
    # An index knows no other file of this project: what is linked to there is named.
    long_description=RELATIVE_LINK.sub(r"\1", Path("README.md").read_text(encoding="utf-8")),
    long_description_content_type="text/markdown",
)
