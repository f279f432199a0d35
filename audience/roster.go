package audience

import (
	"bytes"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"iter"
	"time"
)

// The limits of a Roster, in bytes.
const (
	MaxUser = 255 // of the id of a member
	maxID   = 767 // of the id of an audience; the ids that an Announcer makes have at most 511
	maxName = 255 // of the name of an audience, and of the ID of a Deletion
)

// ErrSuperseded says that a later sync of the same audience has begun, on this node or another
// node. The later sync continues where the earlier one stopped.
var ErrSuperseded = errors.New("audience: a later sync of this audience has begun")

// A Roster keeps the members of audiences, durably if its store is durable. It forwards
// nothing: the Announcer does that. All methods may be called concurrently, and by several
// nodes if the store is shared.
//
// An audience has an id of 1 to 767 bytes, and a generation, which each sync raises. A member is a
// user id of 1 to 255 bytes. The Roster stores each member with the generation of the latest sync
// whose list had the user. An audience also has at most one chunk in flight: users who are about to
// join or to leave. The Announcer announces them before it calls Confirm, which changes the
// members. Begin returns the chunk in flight of an interrupted sync, so that the next sync
// announces it again.
//
// The latest generation owns the audience. Join, Leave and Confirm with another generation
// change nothing and return ErrSuperseded.
//
// Each change is atomic: after an error or a crash, either all of it is stored or nothing. If a
// store cannot make atomic changes, it must write in such an order that the same call can be
// repeated after a crash. After Close of the store the methods return webhook.ErrClosed.
//
// A store can embed an Update, which implements the methods that change something.
type Roster interface {
	// Begin starts a new generation of an audience and returns its number, which is 1 for a new
	// audience. A new audience gets the name, of up to 255 bytes. An existing audience keeps its
	// name. Begin also returns the chunk in flight, and leaves it in flight.
	Begin(ctx context.Context, audience, name string) (generation uint64, inFlight Chunk, err error)

	// Join sets the generation of those users who are members already. The other users become the
	// chunk in flight, each once, in the order of their bytes. Join returns this chunk, which is
	// empty if all users are members. Join fails if there is a chunk in flight already.
	Join(ctx context.Context, audience string, generation uint64, users []string) (Chunk, error)

	// Leave looks at up to max members whose ids are greater than the argument after, in the order
	// of their bytes. The first call passes "" for after. The members with an older generation
	// become the chunk in flight. Leave returns this chunk. The result last is the greatest id that
	// it has looked at, which the next call passes for after, or "" if there are no more members.
	// Leave fails if there is a chunk in flight already.
	Leave(ctx context.Context, audience string, generation uint64, after string, max int) (c Chunk, last string, err error)

	// Confirm takes the first n users out of the chunk in flight. Users who join become members,
	// with the generation of the chunk. Users who leave are members no longer. The rest of the
	// chunk stays in flight.
	Confirm(ctx context.Context, audience string, generation uint64, n int) error

	// Members yields the members whose ids are greater than the argument after, in the order of
	// their bytes. It holds no lock between two yields. An error ends the sequence.
	Members(ctx context.Context, audience, after string) iter.Seq2[string, error]

	// Audiences yields the audiences for which Begin was called, in the order of the bytes of their
	// ids. It holds no lock between two yields. An error ends the sequence.
	Audiences(ctx context.Context) iter.Seq2[Entry, error]
}

// An Entry is an audience in a Roster.
type Entry struct {
	ID         string
	Name       string // the name given to the first Begin
	Generation uint64
}

// A Chunk is a group of users who are announced together.
type Chunk struct {
	Generation uint64    // of the Join or Leave that made the chunk; part of its message ids
	At         time.Time // when the chunk was made, in UTC and to the millisecond
	Left       bool      // the users leave; otherwise they join
	Users      []string  // sorted by bytes
}

// NewChunk returns a chunk with the current time in At. Without users it returns the zero Chunk.
func NewChunk(generation uint64, left bool, users []string) Chunk {
	if len(users) == 0 {
		return Chunk{}
	}
	return Chunk{Generation: generation, At: time.Now().UTC().Truncate(time.Millisecond), Left: left, Users: users}
}

// Rest returns the chunk without its first n users.
func (c Chunk) Rest(n int) Chunk {
	if n >= len(c.Users) {
		return Chunk{}
	}
	c.Users = c.Users[max(n, 0):]
	return c
}

// A Record is the state of an audience in a Roster, without its members.
type Record struct {
	Generation uint64
	Name       string
	InFlight   Chunk
}

// owned returns ErrSuperseded unless generation is the latest one.
func (r *Record) owned(generation uint64) error {
	if generation == 0 || r.Generation != generation {
		return ErrSuperseded
	}
	return nil
}

// idle returns nil if generation is the latest one and no chunk is in flight.
func (r *Record) idle(generation uint64) error {
	err := r.owned(generation)
	if err == nil && len(r.InFlight.Users) > 0 {
		err = errors.New("audience: a chunk is in flight")
	}
	return err
}

const recordVersion = 1

// AppendBinary appends the record to b: the byte recordVersion, and the encoding of encoding/gob.
func (r *Record) AppendBinary(b []byte) ([]byte, error) {
	buf := bytes.NewBuffer(append(b, recordVersion))
	err := gob.NewEncoder(buf).Encode((*storedRecord)(r))
	return buf.Bytes(), err
}

// UnmarshalBinary reads the form that AppendBinary writes. It keeps no reference to b.
func (r *Record) UnmarshalBinary(b []byte) error {
	if len(b) == 0 || b[0] != recordVersion {
		return errors.New("audience: a record of an unknown version")
	}
	*r = Record{}
	if err := gob.NewDecoder(bytes.NewReader(b[1:])).Decode((*storedRecord)(r)); err != nil {
		return fmt.Errorf("audience: malformed record: %w", err)
	}
	return nil
}

// A storedRecord is a Record without its methods: for a Record, gob would call UnmarshalBinary.
type storedRecord Record
