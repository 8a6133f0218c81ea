#!/usr/bin/env bash
# Build newer/main.go, an API server of Kubernetes 1.36's libraries, with Debian unstable's Go and sources: nothing but
# apt is used, and nothing is installed. 400 MB of packages, 4 GB while it builds; once: a second run ends at once.
#
#   build_newer.sh FOLDER     the program comes to FOLDER/bin/newer
set -euo pipefail
out=$1
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source=$here/newer/main.go

main() {
  mkdir -p "$out/bin"
  exec 9> "$out/lock"
  flock 9
  if [ -x "$out/bin/newer" ] && cmp -s "$source" "$out/main.go"; then return; fi
  libraries
  build
  cp "$source" "$out/main.go"
  rm -rf "$out/root" "$out/gocache" "$out/apt" "$out/home"
}

# Unpacked into a folder, with an apt of our own that takes the mirror from the machine's.
libraries() {
  local apt=$out/apt root=$out/root mirror
  mirror=$({ cat /etc/apt/sources.list.d/debian.sources /etc/apt/sources.list 2> /dev/null || true; } |
    sed -nE 's/^URIs: *(\S+\/debian)\/?$/\1/p; s/^deb (\[[^]]*\] )?(\S+\/debian)\/? .*/\2/p' | awk 'NR == 1')
  if [ -z "$mirror" ]; then echo "the machine's apt names no Debian mirror" >&2; exit 1; fi
  mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial" "$apt/parts" "$root"
  printf 'Types: deb\nURIs: %s\nSuites: sid\nComponents: main\nSigned-By: /usr/share/keyrings/debian-archive-keyring.gpg\n' \
    "$mirror" > "$apt/parts/sid.sources"
  : > "$apt/status"
  printf 'Dir::Etc::sourcelist "/dev/null"; Dir::Etc::sourceparts "%s/parts"; Dir::State::lists "%s/lists"; Dir::State::status "%s/status"; Dir::Cache "%s/cache";\n' \
    "$apt" "$apt" "$apt" "$apt" > "$apt/conf"
  (
    export APT_CONFIG=$apt/conf
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends --download-only golang-1.26-go golang-k8s-apiextensions-apiserver-dev
  ) > "$out/apt.log" 2>&1 || { tail -n 5 "$out/apt.log" >&2; exit 1; }
  for package in "$apt"/cache/archives/*.deb; do dpkg-deb -x "$package" "$root"; done
}

# Debian's Go is linked statically: it runs where it was unpacked.
build() {
  local version
  version=$(dpkg-deb -f "$out"/apt/cache/archives/golang-k8s-apiserver-dev_*.deb Version)  # 0.36.4-2
  version=${version%-*}
  local minor=${version#0.} package=k8s.io/component-base/version
  minor=${minor%%.*}
  mkdir -p "$out/home"
  HOME=$out/home GOROOT=$out/root/usr/lib/go-1.26 GOPATH=$out/root/usr/share/gocode GO111MODULE=off GOFLAGS='' GOPROXY=off \
    GOTOOLCHAIN=local CGO_ENABLED=0 GOCACHE=$out/gocache \
    nice "$out/root/usr/lib/go-1.26/bin/go" build -o "$out/bin/newer" \
    -ldflags "-s -w -X $package.gitMajor=1 -X $package.gitMinor=$minor -X $package.gitVersion=v1.${version#0.}" "$source" \
    > "$out/build.log" 2>&1 || { tail -n 20 "$out/build.log" >&2; exit 1; }
}

main
