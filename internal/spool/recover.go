package spool

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

const (
	filePrefix  = "segment-"
	asideSuffix = ".aside"
)

func fileName(number uint64) string { return fmt.Sprintf("%s%08d", filePrefix, number) }

// fileNumber returns the number in a name that fileName made.
func fileNumber(name string) (uint64, bool) {
	digits, ok := strings.CutPrefix(name, filePrefix)
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseUint(digits, 10, 63)
	return n, err == nil && fileName(n) == name
}

// A DamageError reports a damaged file: the package has set the file aside, or cannot
// load its messages.
type DamageError struct {
	File string // path; the new path if the file was set aside
	Err  error  // the damage
}

func (e *DamageError) Error() string { return fmt.Sprintf("spool: file %s: %v", e.File, e.Err) }

func (e *DamageError) Unwrap() error { return e.Err }

// recover returns the segments in the folder, oldest first. It removes files without
// messages.
func (d *Dir) recover() ([]*Segment, error) {
	list, err := os.ReadDir(d.path)
	if err != nil {
		return nil, err
	}
	var segments []*Segment
	for _, item := range list {
		number, ok := fileNumber(item.Name())
		if !ok {
			continue
		}
		if number < 1<<62 { // ignore a number so large that later numbers could overflow
			d.number = max(d.number, number)
		}
		path := filepath.Join(d.path, item.Name())
		s, err := d.inspect(path, item)
		if errors.Is(err, errVacant) {
			err = os.Remove(path)
		}
		if damage := (*DamageError)(nil); errors.As(err, &damage) {
			d.setAside(path, damage.Err)
		} else if err != nil {
			d.conf.Report(fmt.Errorf("spool: cannot read or remove a file, which stays in the folder for the next start: %w", err))
		} else if s != nil {
			segments = append(segments, s)
			d.used += s.size
			d.sequence = max(d.sequence, s.h.sequence)
		}
	}
	slices.SortFunc(segments, func(a, b *Segment) int {
		return cmp.Or(cmp.Compare(a.h.sequence, b.h.sequence), cmp.Compare(a.name, b.name))
	})
	return segments, nil
}

// inspect reads the header and the index of a file. It returns errVacant, a *DamageError,
// or the error of the file system.
func (d *Dir) inspect(path string, item fs.DirEntry) (*Segment, error) {
	if !item.Type().IsRegular() {
		return nil, &DamageError{path, errors.New("it is not a regular file")}
	}
	info, err := item.Info()
	if err != nil {
		return nil, err
	}
	b, err := readFile(path, d.conf.layout().dataAt())
	if err != nil {
		return nil, err
	}
	h, err := parseHeader(b)
	if errors.Is(err, errVacant) {
		return nil, err
	}
	if err == nil && h.layout.dataAt() > len(b) {
		if b, err = readFile(path, h.layout.dataAt()); err != nil {
			return nil, err
		}
		err = h.checkIndex(b)
	}
	if err != nil {
		return nil, &DamageError{path, err}
	}
	n := count(b[headerSize:h.layout.dataAt()])
	if n == 0 {
		return nil, errVacant
	}
	return &Segment{dir: d, name: path, info: info, h: h, n: n, size: info.Size()}, nil
}

// setAside renames a file so that it is not read as a segment again, and reports the
// damage.
func (d *Dir) setAside(path string, why error) {
	aside := path + asideSuffix
	for i := 2; ; i++ {
		if _, err := os.Lstat(aside); errors.Is(err, fs.ErrNotExist) {
			break
		} else if err != nil {
			d.conf.Report(&DamageError{path, fmt.Errorf("%w; it could not be set aside: %w", why, err)})
			return
		}
		aside = path + asideSuffix + strconv.Itoa(i)
	}
	if err := os.Rename(path, aside); err != nil {
		d.conf.Report(&DamageError{path, fmt.Errorf("%w; it could not be set aside: %w", why, err)})
		return
	}
	d.conf.Report(&DamageError{aside, why})
}
