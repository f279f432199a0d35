package natsqueue

import (
	"encoding/base64"
	"fmt"
	"hash/fnv"
	"strconv"
	"strings"
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

// lastToken undoes token for the last part of a subject.
func lastToken(subject string) (string, error) {
	return untoken(subject[strings.LastIndexByte(subject, '.')+1:])
}

// hash returns a number that stands for a text.
func hash(text string) uint32 {
	h := fnv.New32a()
	h.Write([]byte(text))
	return h.Sum32()
}

// The kinds of messages of a partition, the last token of their subjects.
const (
	kindPut     = "log.put" // chunks of deliveries, by any node
	kindOwn     = "log.own" // records, by the owner
	kindKey     = "key"     // dedup keys of deliveries that are erased, by the owner
	kindDamaged = "damaged" // what could not be read, for people to look at
)

// prefix returns the subjects of a partition but for the kind.
func (c *Config) prefix(partition int) string { return c.Stream + "." + strconv.Itoa(partition) + "." }

// heartbeat returns the subject of a node's heartbeats.
func (c *Config) heartbeat(node string) string { return c.Stream + ".node." + node }

func (c *Config) reserve() string { return c.Stream + ".reserve" }

// ask returns the subject of questions between nodes, which no stream keeps.
func (c *Config) ask(what string) string { return c.Stream + "_ASK." + what }

// partition returns the partition of a destination.
func (c *Config) partition(destination string) int {
	return int(hash(destination) % uint32(c.Partitions))
}
