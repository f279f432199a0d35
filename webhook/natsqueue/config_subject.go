package natsqueue

import (
	"fmt"
	"hash/fnv"
	"net/url"
	"strconv"
	"strings"
	"unicode/utf8"
)

// The kinds of messages of a partition are the last tokens of their subjects.
const (
	kindPut     = "log.put" // records with new deliveries, by any node
	kindOwn     = "log.own" // records, by the owner
	kindKey     = "key"     // dedup keys of purged deliveries, by the owner
	kindDamaged = "damaged" // unreadable deliveries, for people to look at
)

// prefix returns the beginning of the subjects of a partition. A kind follows it.
func (c *Config) prefix(partition int) string { return c.Stream + "." + strconv.Itoa(partition) + "." }

// heartbeat, reserve, document, audience and member return the subjects of the stream that belong to no
// partition; see reserveBytes and, for dead letters, deadSubject.
func (c *Config) heartbeat(node string) string { return c.Stream + ".node." + node }
func (c *Config) reserve() string              { return c.Stream + ".reserve" }
func (c *Config) audience(token string) string { return c.Stream + ".audience." + token }
func (c *Config) member(id, token string) string {
	return c.Stream + ".member." + id + "." + token
}

// document returns the subject of a document. The hash of its folder is one token, so that a node can
// read one folder and hardly anything else. The path is the last token.
func (c *Config) document(folder, name string) string {
	return strings.TrimSuffix(c.documents(folder), "*") + token(string(rune(len(folder)))+folder+name)
}

// documents returns a pattern for the documents of a folder, and of others with the same hash.
func (c *Config) documents(folder string) string {
	return c.Stream + ".document." + decimal(uint64(hash(folder))) + ".*"
}

func (c *Config) allDocuments() string { return c.Stream + ".document.>" }

// splitPath returns the folder and the name in the last token of a document's subject, decoded. It
// returns no folder for a token that the method document does not make.
func splitPath(path string) (folder, name string) {
	n, size := utf8.DecodeRuneInString(path)
	if rest := path[size:]; int(n) <= len(rest) {
		return rest[:n], rest[n:]
	}
	return "", path
}

// deadSubject returns the subject of the dead letters of a destination: the partition and the
// destination, each as one token.
func (c *Config) deadSubject(destination string) string {
	return strings.TrimSuffix(c.deadIn(c.partition(destination)), "*") + token(destination)
}

// deadIn returns a pattern for the dead letters of a partition.
func (c *Config) deadIn(partition int) string {
	return c.Stream + ".dead." + strconv.Itoa(partition) + ".*"
}

// ask returns the subject of messages between nodes. The stream does not store them.
func (c *Config) ask(what string) string { return c.Stream + "_ASK." + what }

// partition returns the partition of a destination.
func (c *Config) partition(destination string) int {
	return int(hash(destination) % uint32(c.Partitions))
}

// token encodes a name as one token of a subject. A name of letters, digits, "-", "_" and "~" stays
// as it is.
func token(name string) string {
	if name == "" {
		return "="
	}
	return strings.ReplaceAll(url.QueryEscape(name), ".", "%2E")
}

// lastToken decodes the last token of a subject. It rejects tokens that token does not return.
func lastToken(subject string) (string, error) {
	t := subject[strings.LastIndexByte(subject, '.')+1:]
	name, err := url.QueryUnescape(strings.TrimPrefix(t, "="))
	if err != nil || token(name) != t {
		return "", fmt.Errorf("natsqueue: %q in a subject is not an encoded name", t)
	}
	return name, nil
}

// hash returns the 32-bit FNV-1a hash of a text.
func hash(text string) uint32 {
	h := fnv.New32a()
	h.Write([]byte(text))
	return h.Sum32()
}
