package server

import "golang.org/x/sys/windows"

// diskFree returns the bytes that may still be written to the disk of a folder.
func diskFree(folder string) (int64, error) {
	path, err := windows.UTF16PtrFromString(folder)
	if err != nil {
		return 0, err
	}
	var free uint64
	err = windows.GetDiskFreeSpaceEx(path, &free, nil, nil)
	return int64(free), err
}

// fileLimit returns nothing: Windows has no such limit.
func fileLimit() (n uint64, known bool) { return 0, false }
