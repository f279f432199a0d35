package natsqueue

import (
	"encoding/base64"
	"fmt"
	"hash/fnv"
	"strconv"
	"strings"
	"time"
)

// token is what stands for a name, of any bytes, in a subject: the name itself
// where it is plain, else "=" and its bytes in base64.
func token(name string) string {
	plain := name != ""
	for i := 0; i < len(name) && plain; i++ {
		c := name[i]
		plain = c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_'
	}
	if plain {
		return name
	}
	return "=" + base64.RawURLEncoding.EncodeToString([]byte(name))
}

// untoken undoes token. It refuses what token does not return.
func untoken(t string) (string, error) {
	name := t
	if text, ok := strings.CutPrefix(t, "="); ok {
		b, err := base64.RawURLEncoding.DecodeString(text)
		if err != nil {
			return "", fmt.Errorf("natsqueue: %q in a subject: %w", t, err)
		}
		name = string(b)
	}
	if token(name) != t {
		return "", fmt.Errorf("natsqueue: %q in a subject stands for no name", t)
	}
	return name, nil
}

// partitionOf returns the partition of a destination, of n.
func partitionOf(destination string, n int) int {
	h := fnv.New32a()
	h.Write([]byte(destination))
	return int(h.Sum32() % uint32(n))
}

// The kinds of subjects of a partition, the third token.
const (
	kindQueue = "q"     // then the destination: deliveries that are due, or soon
	kindWait  = "w"     // then the destination and the bucket: those that wait
	kindDone  = "done"  // records of what was settled
	kindOwner = "owner" // whose the partition is
)

// soon is how long before its time a delivery may be in memory.
const soon = 10 * time.Second

// A subjects makes the subjects of a stream.
type subjects struct{ name string }

func (s subjects) partition(p int) string { return s.name + "." + strconv.Itoa(p) + "." }

func (s subjects) all() []string {
	return []string{
		s.name + ".*." + kindQueue + ".*",
		s.name + ".*." + kindWait + ".*.*",
		s.name + ".*." + kindDone,
		s.name + ".*." + kindOwner,
	}
}

// count and look are subjects of messages between processes, which no stream keeps: one
// asks all for their counts, the other for a look at who owns what.
func (s subjects) count() string { return s.name + ".ask.count" }
func (s subjects) look() string  { return s.name + ".ask.look" }

// delivery is the subject of a delivery to the destination that token stands for.
// What is not due soon is kept in buckets, each of deliveries that are due at about
// the same time: so memory needs to know no more than the first of each.
func (s subjects) delivery(p int, token string, due, now time.Time) string {
	wait := due.Sub(now)
	if wait <= soon {
		return s.partition(p) + kindQueue + "." + token
	}
	width := int64(1)
	for width < int64(wait/time.Second)/32 {
		width *= 2
	}
	from := due.Unix() / width * width
	return s.partition(p) + kindWait + "." + token + "." + strconv.FormatInt(from, 36) + "-" + strconv.FormatInt(width, 36)
}

// destinationOf returns the destination of a subject of deliveries without the
// part that names stream and partition.
func destinationOf(rest string) (string, error) {
	kind, rest, _ := strings.Cut(rest, ".")
	t, _, bucket := strings.Cut(rest, ".")
	if kind != kindQueue && kind != kindWait || bucket != (kind == kindWait) {
		return "", fmt.Errorf("natsqueue: no deliveries have the subject %q", kind+"."+rest)
	}
	return untoken(t)
}
