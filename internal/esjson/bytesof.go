package esjson

import "unsafe"

// bytesOf returns the bytes of s without copying them. The caller must not change them.
func bytesOf(s string) []byte {
	return unsafe.Slice(unsafe.StringData(s), len(s))
}
