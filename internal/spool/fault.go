package spool

import (
	"errors"
	"runtime/debug"
	"unsafe"
)

// errFault is the error that guard returns for a memory fault in a mapped file. The causes
// are a page that the file system could not read or find space for, or a file that another
// program has truncated.
var errFault = errors.New("the disk failed under the mapped file")

// guard runs fn. If fn causes a fault in memory, guard returns an error. Without guard,
// the fault would end the program.
func guard(memory []byte, fn func() error) (err error) {
	defer recoverFault(memory, debug.SetPanicOnFault(true), &err)
	return fn()
}

// recoverFault must be deferred. It turns a fault in memory into an error. It also restores
// the goroutine's previous setting of debug.SetPanicOnFault, which is the argument before.
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
