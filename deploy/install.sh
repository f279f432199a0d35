#!/bin/sh
# Installs hookferry from a release, once the checksum of its archive is verified.
#
#   sh install.sh                  the newest release
#   sh install.sh -v v0.1.0        this one
#   sh install.sh -d ~/bin         into another folder than /usr/local/bin
#   sh install.sh -u URL           from a mirror: where it has the files of a release
#   sh install.sh FILE.tar.gz      an archive that is here, with SHA256SUMS beside it
#
# SHA256SUMS comes from the same place as the archive. Where both were made, this says:
#   gh attestation verify FILE.tar.gz --repo hookferry/analytics
set -eu

fail() {
	printf 'install.sh: %s\n' "$1" >&2
	exit 1
}

# fetch URL FILE
fetch() {
	if command -v curl >/dev/null; then
		curl -fsSL -o "$2" "$1"
	elif command -v wget >/dev/null; then
		wget -q -O "$2" "$1"
	else
		fail 'install curl or wget, or give an archive that is here'
	fi || fail "cannot get $1"
}

# checksum FILE
checksum() {
	if command -v sha256sum >/dev/null; then
		sha256sum <"$1"
	elif command -v shasum >/dev/null; then
		shasum -a 256 <"$1"
	else
		fail 'install sha256sum or shasum, which verify the checksum'
	fi | cut -d ' ' -f 1
}

releases=https://github.com/hookferry/analytics/releases
url=$releases/latest/download
folder=/usr/local/bin
while getopts v:d:u: option; do
	case $option in
	v) url=$releases/download/cmd/hookferry/$OPTARG ;;
	d) folder=$OPTARG ;;
	u) url=${OPTARG%/} ;;
	*) fail 'usage: install.sh [-v VERSION] [-d FOLDER] [-u URL] [FILE.tar.gz]' ;;
	esac
done
shift $((OPTIND - 1))

mkdir -p "$folder" && [ -w "$folder" ] || fail "cannot write to $folder: be root, or choose another folder with -d"
work=$(mktemp -d)
new=$folder/.hookferry.$$
trap 'rm -rf "$work" "$new"' EXIT
trap 'exit 1' HUP INT TERM

if [ $# -gt 0 ]; then
	archive=$1
	name=${archive##*/}
	sums=$(dirname "$archive")/SHA256SUMS
	[ -f "$archive" ] || fail "there is no file $archive"
	[ -f "$sums" ] || fail "there is no $sums to verify the archive with"
else
	system=$(uname -s)
	case $system in
	Linux | Darwin | FreeBSD) system=$(printf %s "$system" | tr '[:upper:]' '[:lower:]') ;;
	*) fail "there is no program for $system that this script installs" ;;
	esac
	machine=$(uname -m)
	case $machine in
	x86_64 | amd64) machine=amd64 ;;
	aarch64 | arm64) machine=arm64 ;;
	armv7*) machine=arm ;;
	i?86) machine=386 ;;
	*) fail "there is no program for $machine" ;;
	esac
	sums=$work/SHA256SUMS
	fetch "$url/SHA256SUMS" "$sums"
	name=$(sed -n "s/^[0-9a-f]\{64\}  \(hookferry_[0-9A-Za-z.+-]*_${system}_$machine\.tar\.gz\)\$/\1/p" "$sums")
	[ -n "$name" ] || fail "the release has no program for $system/$machine"
	archive=$work/$name
	fetch "$url/$name" "$archive"
fi

want=$(awk -v name="$name" '$2 == name { print $1 }' "$sums")
[ -n "$want" ] || fail "SHA256SUMS has no checksum of $name"
got=$(checksum "$archive")
[ "$got" = "$want" ] || fail "$name is damaged, and nothing was installed: its checksum is $got, not $want"

tar -xzf "$archive" -C "$work"
cp "$work/${name%.tar.gz}/hookferry" "$new"
chmod 755 "$new"
mv -f "$new" "$folder/hookferry" # at once, also where the old program runs
"$folder/hookferry" version
