package boltqueue

import "context"

// readingBytes is how much is read between two looks at the context, and calls of
// progress.
const readingBytes = 1 << 20

// A reading tells how far the reading of a file is, and ends it with a context. A
// nil one does neither.
type reading struct {
	ctx      context.Context
	progress func(read, of int64)
	read, of int64
	next     int64 // bytes of read from which on it looks again
}

func newReading(ctx context.Context, progress func(read, of int64), of int64) *reading {
	if progress == nil {
		progress = func(int64, int64) {}
	}
	return &reading{ctx: ctx, progress: progress, of: of}
}

// step notes that n bytes are read. It returns the error of a context that is
// done, now or when it looks the next time.
func (p *reading) step(n int) error {
	if p == nil {
		return nil
	}
	if p.read += int64(n); p.read < p.next {
		return nil
	}
	if err := p.ctx.Err(); err != nil {
		return err // and from now on
	}
	p.next = p.read + readingBytes
	p.progress(min(p.read, p.of), p.of)
	return nil
}

// end tells of the end.
func (p *reading) end() { p.progress(p.of, p.of) }

// err is that of the context.
func (p *reading) err() error {
	if p == nil {
		return nil
	}
	return p.ctx.Err()
}
