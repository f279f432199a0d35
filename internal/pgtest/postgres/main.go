//go:build unix

// Command postgres runs a PostgreSQL server for a test in another language. It
// prints its URL, and ends it once standard input ends.
package main

import (
	"fmt"
	"io"
	"log"
	"os"
	"strings"

	"github.com/hookferry/analytics/internal/pgtest"
)

func main() {
	log.SetFlags(0)
	db, err := pgtest.Start("fsync=off") // no test pulls a plug
	if err != nil {
		log.Fatal(err)
	}
	socket := strings.TrimPrefix(strings.Fields(db.URL())[0], "host=")
	fmt.Println("postgres://test@/postgres?host=" + socket)
	_, _ = io.Copy(io.Discard, os.Stdin)
	if err := db.Close(); err != nil {
		log.Fatal(err)
	}
}
