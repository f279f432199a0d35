package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/hookferry/analytics/cmd/hookferry/internal/server"
	"github.com/hookferry/analytics/webhook/filequeue"
	"github.com/hookferry/analytics/webhook/pgqueue"
)

const (
	storeHelp = `Store looks after the store that serve keeps in its data folder. No server may
be running on it. A database (serve --queue) is looked after by its own tools;
of it there is only sql.

Examples:
  hookferry store check
  hookferry store rescue --data /var/lib/hookferry --to rescued
  hookferry store sql | psql -v ON_ERROR_STOP=1 "$DATABASE_URL"
`
	storeCheckHelp = `Check reads all of the store, and prints what it holds and what is missing. It
changes nothing.

Examples:
  hookferry store check
`
	storeRescueHelp = `Rescue writes what can be read of a damaged store to a new folder, and prints
what is missing. It changes nothing of the old one.

Examples:
  hookferry store rescue --to rescued
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
	found struct {
		Waiting   int      `json:"waiting"`
		Dead      int      `json:"dead"`
		Delivered int      `json:"delivered"`
		Settings  int      `json:"settings"`
		Missing   []string `json:"missing"`
	}
	checked struct {
		found
		Bytes  int64 `json:"bytes"`
		Needed int64 `json:"needed"`
	}
	rescued struct {
		found
		Folder string `json:"folder"`
	}
)

func checkStore(o *options) action {
	asJSON := jsonFlag(o)
	o.noVariables()
	data := storeFlag(o)
	return func(ctx context.Context, _ []string, p process) error {
		m := newMeter(p.screen(p.stderr), "read")
		m.amount = megabytes
		folder := server.StorePath(*data)
		r, err := filequeue.CheckContext(ctx, folder, func(read, of int64) { m.show(read, of, -1) })
		m.end()
		switch {
		case errors.Is(err, context.Canceled):
			return errors.New("interrupted")
		case len(r.Missing) > 0:
			err = fmt.Errorf("%s is damaged; 'hookferry store rescue --data %s --to FOLDER' writes what can be read to a new folder", folder, *data)
		case err != nil:
			return err
		}
		if *asJSON {
			return errors.Join(printJSON(p.stdout, checked{newFound(&r), r.Bytes, r.Needed}), err)
		}
		printFound(p.stdout, &r)
		fmt.Fprintf(p.stdout, "%s bytes, of which %s are needed\n", grouped(r.Bytes), grouped(r.Needed))
		return err
	}
}

func rescueStore(o *options) action {
	to := o.text("to", "", "`folder` to write, which must not exist")
	asJSON := jsonFlag(o)
	o.noVariables()
	data := storeFlag(o)
	return func(ctx context.Context, _ []string, p process) error {
		if *to == "" {
			return usagef("--to: want the folder to write")
		}
		from := server.StorePath(*data)
		m := newMeter(p.screen(p.stderr), "read")
		m.amount = megabytes
		r, err := filequeue.RescueContext(ctx, from, *to, func(read, of int64) { m.show(read, of, -1) })
		m.end()
		if errors.Is(err, context.Canceled) {
			return errors.New("interrupted; there is no new store, and the old one is as it was")
		}
		if err != nil {
			return err
		}
		if *asJSON {
			return printJSON(p.stdout, rescued{newFound(&r), *to})
		}
		printFound(p.stdout, &r)
		_, err = fmt.Fprintf(p.stdout, "To use it: move %s away, and %s in its place\n", from, *to)
		return err
	}
}

func newFound(r *filequeue.Report) found {
	return found{r.Waiting, r.Dead, r.Delivered, r.Settings, append([]string{}, r.Missing...)}
}

// printFound prints what a store holds, and a line for each thing that is missing.
func printFound(w io.Writer, r *filequeue.Report) {
	fmt.Fprintf(w, "waiting: %s, dead letters: %s, delivered and kept: %s, settings: %s, missing: %s\n",
		grouped(r.Waiting), grouped(r.Dead), grouped(r.Delivered), grouped(r.Settings), grouped(len(r.Missing)))
	for _, what := range r.Missing {
		fmt.Fprintln(w, "missing:", what)
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
