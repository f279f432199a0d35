//go:build unix

// Command postgres runs a PostgreSQL server for a test in another language. It prints the
// URL of the server, and stops the server when standard input ends.
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
	db, err := pgtest.Start("fsync=off") // tests simulate no loss of power
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
