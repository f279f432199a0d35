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

const MaxUser = 255 // bytes of the id of a member
const maxName = 255 // bytes of the name of an audience, and of the ID of a Deletion

// A Roster keeps the members of audiences. It decides nothing. All methods may be called
// concurrently, and by several nodes if the Roster is shared. After Close of the Roster, or of the
// store that the Roster is made of, all methods return webhook.ErrClosed. A list holds no lock
// between two yields, and ends after its first error.
//
// An audience has an id of 1 to 767 bytes, a Record and members: user ids of 1 to 255 bytes.
type Roster interface {
	// UpdateAudience calls f with the record and the members of an audience. It stores either all
	// changes that f makes to both, or none of them. An unknown audience has the zero Record and no
	// members. f calls Set at most once, and last. If f returns an error, the audience stays as it
	// was, and the error of UpdateAudience wraps it. On a shared Roster it may call f again, after
	// another node has changed the audience.
	//
	// A Roster that cannot make all changes at once must change the members before the record. Then the
	// same update can be repeated after a crash.
	UpdateAudience(ctx context.Context, audience string, f func(*Record, Members) error) error
	// Members yields the members, in the order of their bytes.
	Members(ctx context.Context, audience string) iter.Seq2[string, error]
	// Audiences yields the audiences with a stored record, in the order of the bytes of their ids.
	Audiences(ctx context.Context) iter.Seq2[Entry, error]
}

// Members gives access to the members of an audience during an UpdateAudience. All lists are sorted
// by the bytes of the users, with each user once.
type Members interface {
	// Get returns a Member for each of users, even if the user is not a member.
	Get(users []string) ([]Member, error)
	// Next returns the first members, up to max, whose ids are greater than after.
	Next(after string, max int) ([]Member, error)
	// Set stores the generation for each of users, which is never empty. Zero removes them.
	Set(users []string, generation uint64) error
}

// A Member is a user, with the generation of the latest sync whose list had the user. The
// generation is zero for a user who is not a member.
type Member struct {
	User       string
	Generation uint64
}

// An Entry is an audience in a Roster.
type Entry struct {
	ID         string
	Name       string // the name given to the first Sync or Create
	Generation uint64
}

// A Record is the state of an audience in a Roster, without its members.
type Record struct {
	Generation uint64 // the number of the latest sync, which owns the audience
	Name       string // up to 255 bytes
	// InFlight has the users who are about to join or to leave. The Announcer announces them before it
	// changes the members. So the sync after a crash knows which announcements to repeat.
	InFlight Chunk
}

// A Chunk is a group of users who are announced together.
type Chunk struct {
	Generation uint64    // of the sync that made the chunk; part of its message ids
	At         time.Time // when the chunk was made, in UTC and to the millisecond
	Left       bool      // the users leave; otherwise they join
	Users      []string  // sorted by bytes
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
