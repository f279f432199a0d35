package boltqueue

import (
	"fmt"
	"os"
)

// A salvage reads the pages of a database that may be damaged anywhere. What
// cannot be read it passes over, and counts.
type salvage struct {
	tree
	lost int
	// found is called with each row of the bucket that the names lead to, from
	// the root on; nil if the row's page belongs to none any more.
	found func(names [][]byte, k, v []byte) error
}

// all reads the tree from its root, and if anything of that is lost also the
// pages that no other leads to.
func (s *salvage) all(f *os.File) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	s.file = f
	if err := s.readMeta(); err != nil {
		s.lost++
		s.pageSize = os.Getpagesize()
		s.root = noPage
	}
	s.pages = max(s.pages, uint64(info.Size())/uint64(s.pageSize))
	s.seen = make([]uint64, s.pages/64+1)
	if s.root != noPage {
		if err := s.branch(s.root, 0, [][]byte{}); err != nil {
			return err
		}
	}
	if s.lost == 0 {
		return nil
	}
	for id := uint64(2); id < s.pages; id++ {
		if s.seen[id/64]&(1<<(id%64)) != 0 {
			continue
		}
		b, err := s.page(id)
		if s.reading.err() != nil {
			return s.reading.err()
		}
		if err != nil || native.Uint16(b[8:]) != leafPage {
			continue
		}
		if err := s.leaf(b, 0, nil); err != nil {
			return err
		}
	}
	return nil
}

// noPage is the number of no page.
const noPage = ^uint64(0)

// branch reads a page and what is below it.
func (s *salvage) branch(id uint64, depth int, names [][]byte) error {
	b, err := s.page(id)
	if s.reading.err() != nil {
		return s.reading.err()
	}
	if err != nil || depth > maxTreeDepth {
		s.lost++
		return nil
	}
	return s.leaf(b, depth, names)
}

// leaf reads the elements of a branch or a leaf.
func (s *salvage) leaf(b []byte, depth int, names [][]byte) error {
	flags, n := native.Uint16(b[8:]), int(native.Uint16(b[10:]))
	if flags != branchPage && flags != leafPage || depth > maxTreeDepth {
		s.lost++
		return nil
	}
	if most := (len(b) - pageHeader) / elementSize; n > most {
		s.lost++
		n = most
	}
	for i := range n {
		el := b[pageHeader+i*elementSize:]
		if flags == branchPage {
			if err := s.branch(native.Uint64(el[8:]), depth+1, names); err != nil {
				return err
			}
			continue
		}
		pos, key, value := uint64(native.Uint32(el[4:])), uint64(native.Uint32(el[8:])), uint64(native.Uint32(el[12:]))
		if pos > uint64(len(el)) || key+value > uint64(len(el))-pos {
			s.lost++
			continue
		}
		k, v := el[pos:pos+key], el[pos+key:pos+key+value]
		var err error
		switch {
		case native.Uint32(el)&bucketLeaf == 0:
			err = s.found(names, k, v)
		case names == nil || len(v) < 16:
			// Its pages are found by themselves.
		default:
			below := append(names[:len(names):len(names)], k)
			if root := native.Uint64(v); root != 0 {
				err = s.branch(root, depth+1, below)
			} else if len(v) >= 16+pageHeader {
				err = s.leaf(v[16:], depth+1, below)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (r Rescued) String() string {
	return fmt.Sprintf("%d deliveries, %d dead letters, %d members of audiences; %d places could not be read", r.Waiting, r.Dead, r.Members, r.Lost)
}
