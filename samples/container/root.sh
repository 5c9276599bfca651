#!/bin/sh
# root.sh FOLDER BUNDLE: make a root file system that runs a bundle, and has nothing else: the host in C, the bundle, and
# the libraries that these are linked with, which is libc. For a container (Dockerfile), a chroot or an initramfs.
set -eu
[ $# -eq 2 ] || { echo "usage: root.sh FOLDER BUNDLE" >&2; exit 2; }
folder=$1 bundle=$2
samples=$(cd "$(dirname "$0")/.." && pwd)
include=${PACKAGER_INCLUDE:-$samples/../runtime_stub/include} # of an installed packager: packager sdk --include

[ ! -e "$folder" ] || { echo "error: $folder exists already" >&2; exit 1; }
mkdir -p "$folder/data"
cc -std=c99 -O2 -s -I "$include" "$samples/hosts/c/host.c" -o "$folder/host" -ldl
cp "$bundle" "$folder/model.so"
weights=${bundle%.so}.safetensors # of a bundle whose weights are beside it
[ ! -e "$weights" ] || cp "$weights" "$folder/model.safetensors"

# Lines of ldd: "libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x...)", "/lib64/ld-linux-x86-64.so.2 (0x...)". Where they
# are found is where the dynamic linker of the new root looks for them.
for file in $(ldd "$folder/host" "$folder/model.so" | sed -n 's/^[^/]*\(\/[^ ]*\) (0x.*/\1/p' | sort -u); do
  mkdir -p "$folder$(dirname "$file")"
  cp -L "$file" "$folder$file"
done
