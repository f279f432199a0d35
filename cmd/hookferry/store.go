package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/hookferry/analytics/cmd/hookferry/internal/server"
	"github.com/hookferry/analytics/webhook/boltqueue"
	"github.com/hookferry/analytics/webhook/pgqueue"
)

const (
	storeHelp = `Store looks after the file that serve keeps in its data folder. No server may
be running on it. A database (serve --queue) is looked after by its own tools;
of it there is only sql.

Examples:
  hookferry store check
  hookferry store compact --data /var/lib/hookferry
  hookferry store rescue --to rescued.db
  hookferry store sql | psql -v ON_ERROR_STOP=1 "$DATABASE_URL"
`
	storeCheckHelp = `Check reads all of the store, and prints what it holds and what is wrong.

Examples:
  hookferry store check
`
	storeCompactHelp = `Compact writes the store anew, without the space that is free in it.

Examples:
  hookferry store compact --data /var/lib/hookferry
`
	storeRescueHelp = `Rescue writes what can be read of a damaged store to a new file.

Examples:
  hookferry store rescue --to rescued.db
`
	storeSQLHelp = `Sql prints what makes the tables of a PostgreSQL database, for servers that may
not do so themselves (queue.postgres.migrate).

Examples:
  hookferry store sql | psql -v ON_ERROR_STOP=1 "$DATABASE_URL"
`
)

// storeFlag is the folder that an action is about.
func storeFlag(o *options) *string {
	return o.text("data", defaultData, "data `folder` of serve")
}

// What the actions print with --json.
type (
	checked struct {
		Waiting int   `json:"waiting"`
		Dead    int   `json:"dead"`
		Bytes   int64 `json:"bytes"`
		Free    int64 `json:"free"`
		Journal int64 `json:"journal"`
	}
	compacted struct {
		Before int64 `json:"before"`
		After  int64 `json:"after"`
	}
	rescued struct {
		Waiting int    `json:"waiting"`
		Dead    int    `json:"dead"`
		Members int    `json:"members"`
		Lost    int    `json:"lost"`
		File    string `json:"file"`
	}
)

func checkStore(o *options) action {
	asJSON := jsonFlag(o)
	o.noVariables()
	data := storeFlag(o)
	return func(ctx context.Context, _ []string, p process) error {
		m := newMeter(p.screen(p.stderr), "read")
		m.amount = megabytes
		r, err := boltqueue.CheckContext(ctx, filepath.Join(*data, server.DataFile), func(read, of int64) { m.show(read, of, -1) })
		m.end()
		if errors.Is(err, context.Canceled) {
			return errors.New("interrupted")
		}
		if errors.Is(err, boltqueue.ErrDamaged) {
			return fmt.Errorf("%w; 'hookferry store rescue --data %s --to FILE' writes what can be read to a new file", err, *data)
		}
		if err != nil {
			return err
		}
		if *asJSON {
			return printJSON(p.stdout, checked(r))
		}
		verb := "wait"
		if r.Waiting == 1 {
			verb = "waits"
		}
		_, err = fmt.Fprintf(p.stdout, "%s %s, %s; %s bytes, of which %s are free, and a journal of %s bytes\n",
			deliveries(r.Waiting), verb, counted(r.Dead, "dead letter"), grouped(r.Bytes), grouped(r.Free), grouped(r.Journal))
		return err
	}
}

func compactStore(o *options) action {
	asJSON := jsonFlag(o)
	o.noVariables()
	data := storeFlag(o)
	return func(ctx context.Context, _ []string, p process) error {
		m := newMeter(p.screen(p.stderr), "written")
		m.amount = megabytes
		before, after, err := boltqueue.CompactContext(ctx, filepath.Join(*data, server.DataFile), func(written, of int64) { m.show(written, of, -1) })
		m.end()
		switch {
		case errors.Is(err, context.Canceled):
			return errors.New("interrupted; the store is as it was")
		case err != nil:
			return err
		case *asJSON:
			return printJSON(p.stdout, compacted{before, after})
		}
		_, err = fmt.Fprintf(p.stdout, "%s bytes before, %s bytes now\n", grouped(before), grouped(after))
		return err
	}
}

func rescueStore(o *options) action {
	to := o.text("to", "", "`file` to write, which must not exist")
	asJSON := jsonFlag(o)
	o.noVariables()
	data := storeFlag(o)
	return func(ctx context.Context, _ []string, p process) error {
		if *to == "" {
			return usagef("--to: want the file to write")
		}
		from := filepath.Join(*data, server.DataFile)
		m := newMeter(p.screen(p.stderr), "read")
		m.amount = megabytes
		r, err := boltqueue.RescueContext(ctx, from, *to, func(read, of int64) { m.show(read, of, -1) })
		m.end()
		if errors.Is(err, context.Canceled) {
			return errors.New("interrupted; there is no new file, and the old one is as it was")
		}
		if err != nil {
			return err
		}
		if *asJSON {
			return printJSON(p.stdout, rescued{r.Waiting, r.Dead, r.Members, r.Lost, *to})
		}
		fmt.Fprintf(p.stdout, "%s, %s, %s of audiences; %s that could not be read\n",
			deliveries(r.Waiting), counted(r.Dead, "dead letter"), counted(r.Members, "member"), counted(r.Lost, "place"))
		_, err = fmt.Fprintf(p.stdout, "To use it: move %s and the files of its journal away, and %s in its place\n", from, *to)
		return err
	}
}

func storeSQL(o *options) action {
	schema := o.text("schema", pgqueue.DefaultSchema, "`name` of the schema")
	from := o.number("from", 0, 0, 1_000_000, "`version` that the schema has, as the server says that refuses to start; 0 if it is not there")
	o.noVariables()
	return func(_ context.Context, _ []string, p process) error {
		text, err := pgqueue.SQL(*schema, *from)
		if err != nil {
			return usagef("%v", err)
		}
		_, err = fmt.Fprint(p.stdout, text)
		return err
	}
}

// deliveries is counted for a word that has a plural of its own.
func deliveries(n int) string {
	if n == 1 {
		return "1 delivery"
	}
	return grouped(n) + " deliveries"
}
