package spool

import (
	"errors"
	"runtime/debug"
	"unsafe"
)

// errFault is what becomes of a fault: a page that the file system could not
// fill or find room for, or a file that somebody has cut.
var errFault = errors.New("the disk failed under the mapped file")

// guard runs fn, and returns an error if it meets a fault in memory, which
// would end the program otherwise.
func guard(memory []byte, fn func() error) (err error) {
	defer recoverFault(memory, debug.SetPanicOnFault(true), &err)
	return fn()
}

// recoverFault is to be deferred. It goes back to what the goroutine did on
// faults before, and turns one in memory into an error.
func recoverFault(memory []byte, before bool, err *error) {
	debug.SetPanicOnFault(before)
	r := recover()
	if r == nil {
		return
	}
	if f, ok := r.(interface{ Addr() uintptr }); !ok || !within(f.Addr(), memory) {
		panic(r)
	}
	*err = errFault
}

func within(addr uintptr, memory []byte) bool {
	start := uintptr(unsafe.Pointer(unsafe.SliceData(memory)))
	return start <= addr && addr < start+uintptr(len(memory))
}
