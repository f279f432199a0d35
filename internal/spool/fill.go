package spool

import "os"

// fill reserves space for a file by writing zeros. This works on every file system.
func fill(f *os.File, size int64) error {
	var zeros [32 << 10]byte
	for at := int64(0); at < size; {
		n, err := f.WriteAt(zeros[:min(size-at, int64(len(zeros)))], at)
		if err != nil {
			return err
		}
		at += int64(n)
	}
	return nil
}
