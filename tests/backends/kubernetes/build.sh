#!/usr/bin/env bash
# Build kube-apiserver, kube-controller-manager, kube-scheduler and kubelet (1.20) from Debian's source package with
# Debian's Go: nothing but apt is used. About 4 minutes and 3 GB, once: a second run finds them and ends at once.
#
#   build.sh FOLDER     the programs come to FOLDER/bin
set -euo pipefail
out=$1
programs="kube-apiserver kube-controller-manager kube-scheduler kubelet"
export DEBIAN_FRONTEND=noninteractive

main() {
  mkdir -p "$out/bin"
  exec 9> "$out/lock"
  flock 9
  local missing=""
  for program in $programs; do [ -x "$out/bin/$program" ] || missing="$missing cmd/$program"; done
  if [ -z "$missing" ]; then return; fi
  apt-get install -y -qq --no-install-recommends \
    golang-go golang-github-modern-go-reflect2-dev jq rsync make gcc libc6-dev dpkg-dev > /dev/null
  source_tree
  build "$missing"
}

# Debian's sources, fetched with an apt configuration of our own: the machine's is left alone.
source_tree() {
  local apt=$out/apt
  mkdir -p "$out/src" "$apt/lists/partial" "$apt/cache/archives/partial" "$apt/parts"
  if ! ls "$out"/src/kubernetes_*.orig.tar.* > /dev/null 2>&1; then
    if [ -f /etc/apt/sources.list.d/debian.sources ]; then
      sed -E 's/^Types:.*/Types: deb-src/' /etc/apt/sources.list.d/debian.sources > "$apt/parts/src.sources"
    else
      sed -nE 's/^deb /deb-src /p' /etc/apt/sources.list > "$apt/parts/src.list"
    fi
    printf 'Dir::Etc::sourcelist "/dev/null"; Dir::Etc::sourceparts "%s/parts"; Dir::State::lists "%s/lists"; Dir::Cache "%s/cache";\n' \
      "$apt" "$apt" "$apt" > "$apt/conf"
    (cd "$out/src" && export APT_CONFIG=$apt/conf && apt-get update -qq && apt-get source -qq --download-only kubernetes) > "$out/source.log" 2>&1
  fi
  if [ ! -f "$out/tree/Makefile" ]; then
    mkdir -p "$out/tree"
    tar -C "$out/tree" --strip-components=1 -xf "$out"/src/kubernetes_*.orig.tar.*
  fi
  # The reflect2 that comes along crashes where maps are walked, from Go 1.18 on: Debian's own takes its place.
  local own=$out/tree/vendor/github.com/modern-go/reflect2
  rm -f "$own"/*.go "$own"/*.s
  cp /usr/share/gocode/src/github.com/modern-go/reflect2/*.{go,s} "$own/"
  rm -f "$own"/*_test.go
}

build() {
  cd "$out/tree"
  printf "%s='%s'\n" KUBE_GIT_COMMIT debian KUBE_GIT_TREE_STATE clean KUBE_GIT_VERSION v1.20.2 KUBE_GIT_MAJOR 1 KUBE_GIT_MINOR 20 > "$out/version.sh"
  mkdir -p .go/src/k8s.io "$out/home"
  [ -L .go/src/k8s.io/kubernetes ] || ln -s ../../.. .go/src/k8s.io/kubernetes
  KUBE_GIT_VERSION_FILE="$out/version.sh" GOPATH="$PWD/.go" PATH="/usr/lib/go/bin:$PATH" HOME="$out/home" \
    GOCACHE="$out/gocache" CGO_ENABLED=0 GOFLAGS='' GO111MODULE='' GOPROXY=off \
    make WHAT="$1" GOLDFLAGS='-s -w' > "$out/build.log" 2>&1 || { tail -n 20 "$out/build.log" >&2; exit 1; }
  for program in $1; do cp "_output/local/bin/linux/$(go env GOARCH)/${program#cmd/}" "$out/bin/"; done
  rm -rf _output "$out/gocache"  # 2 GB
}

main
