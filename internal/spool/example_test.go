package spool_test

import (
	"fmt"
	"log"
	"os"
	"time"

	"github.com/hookferry/analytics/internal/spool"
)

func Example() {
	folder, err := os.MkdirTemp("", "spool")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(folder)
	config := spool.Config{Head: `{"batch":[`, MaxData: 4096, MaxMessages: 20}

	// A process queues two messages and ends before it sends them.
	dir, _, err := spool.Open(folder, config)
	if err != nil {
		log.Fatal(err)
	}
	s, err := dir.New(spool.ID{}, time.Now())
	if err != nil {
		log.Fatal(err)
	}
	for _, message := range []string{`{"event":"Opened"}`, `{"event":"Closed"}`} {
		if err := s.Append([]byte(message), spool.Checksum([]byte(message))); err != nil {
			log.Fatal(err)
		}
	}
	if err := dir.Close(); err != nil {
		log.Fatal(err)
	}

	// The next process sends them.
	dir, backlog, err := spool.Open(folder, config)
	if err != nil {
		log.Fatal(err)
	}
	defer dir.Close()
	for _, s := range backlog {
		if lost, err := s.Load(); lost > 0 || err != nil {
			log.Fatal(lost, err)
		}
		fmt.Printf("%s]}\n", s.Bytes())
		if err := s.Remove(); err != nil {
			log.Fatal(err)
		}
	}
	// Output: {"batch":[{"event":"Opened"},{"event":"Closed"}]}
}
