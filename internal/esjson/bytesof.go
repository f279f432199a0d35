package esjson

import "unsafe"

// bytesOf gives the bytes of s without copying them, to be read only.
func bytesOf(s string) []byte {
	return unsafe.Slice(unsafe.StringData(s), len(s))
}
