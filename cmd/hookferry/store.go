package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/hookferry/analytics/audience/fileroster"
	"github.com/hookferry/analytics/cmd/hookferry/internal/config"
	"github.com/hookferry/analytics/cmd/hookferry/internal/server"
	"github.com/hookferry/analytics/webhook/filequeue"
	"github.com/hookferry/analytics/webhook/pgqueue"
)

// dataFlag defines the flag with the data folder whose store a command reads.
func dataFlag(c *command) *string {
	data := c.set.String("data", config.DefaultData, "data `folder` of serve")
	c.variable("data", nil)
	return data
}

// storeReport is the JSON output about a store: its counts, and the parts that are missing.
type storeReport struct {
	Waiting   int      `json:"waiting"`
	Dead      int      `json:"dead"`
	Delivered int      `json:"delivered"`
	Documents int      `json:"documents"`
	Missing   []string `json:"missing"`
	InDoubt   string   `json:"inDoubt,omitempty"`

	Bytes  *int64 `json:"bytes,omitempty"` // Bytes and Needed are those of a check
	Needed *int64 `json:"needed,omitempty"`
	Folder string `json:"folder,omitempty"` // the new folder of a rescue
}

// readMeter returns a meter of the bytes that were read.
func (c *command) readMeter() *meter {
	m := newMeter(c.process.screen(c.process.stderr), "read")
	m.amount = func(bytes float64) string { return fmt.Sprintf("%.1f MB", bytes/1e6) }
	return m
}

// printReport prints a report and a last line. With --json, it prints f with the counts of the
// report instead.
func (c *command) printReport(r filequeue.Report, f storeReport, format string, args ...any) error {
	f.Waiting, f.Dead, f.Delivered, f.Documents, f.Missing, f.InDoubt = r.Waiting, r.Dead, r.Delivered, r.Documents, append([]string{}, r.Missing...), r.InDoubt
	return c.output(f, func(s screen) {
		fmt.Fprintf(s, "waiting: %s, dead letters: %s, delivered and kept: %s, documents: %s, missing: %s\n",
			grouped(r.Waiting), grouped(r.Dead), grouped(r.Delivered), grouped(r.Documents), grouped(len(r.Missing)))
		for _, what := range r.Missing {
			fmt.Fprintln(s, "missing:", what)
		}
		if r.InDoubt != "" {
			fmt.Fprintln(s, "in doubt:", r.InDoubt)
		}
		fmt.Fprintf(s, format+"\n", args...)
	})
}

func checkStore(c *command) action {
	c.jsonFlag()
	data := dataFlag(c)
	return func(ctx context.Context) error {
		folder, m := server.StorePath(*data), c.readMeter()
		r, err := filequeue.Check(ctx, folder, m.show)
		m.end()
		switch {
		case errors.Is(err, context.Canceled):
			return errors.New("interrupted")
		case len(r.Missing) > 0:
			err = fmt.Errorf("%s is damaged; 'hookferry store rescue --data %s --to FOLDER' writes what can be read to a new folder", folder, *data)
		case err != nil:
			return err
		}
		f := storeReport{Bytes: &r.Bytes, Needed: &r.Needed}
		return errors.Join(err, c.printReport(r, f, "%s bytes, of which %s are needed", grouped(r.Bytes), grouped(r.Needed)))
	}
}

func rescueStore(c *command) action {
	to := c.set.String("to", "", "`folder` to write, which must not exist")
	c.jsonFlag()
	data := dataFlag(c)
	return func(ctx context.Context) error {
		if *to == "" {
			return usagef("--to: want the folder to write")
		}
		from, m := server.StorePath(*data), c.readMeter()
		r, err := filequeue.Rescue(ctx, from, *to, m.show)
		m.end()
		switch {
		case errors.Is(err, context.Canceled):
			return errors.New("interrupted; there is no new store, and the old one is as it was")
		case err != nil:
			return err
		}
		if err := fileroster.Copy(from, *to); err != nil {
			r.Missing = append(r.Missing, fmt.Sprintf("the audiences cannot be read, and are missing: %v", err))
		}
		return c.printReport(r, storeReport{Folder: *to}, "To use it: move %s away, and %s in its place", from, *to)
	}
}

func storeSQL(c *command) action {
	schema := c.set.String("schema", pgqueue.DefaultSchema, "`name` of the schema")
	from := c.number("from", 0, 0, 1_000_000, "`version` that the schema has, as the server says that refuses to start; 0 if it is not there")
	return func(context.Context) error {
		text, err := pgqueue.SQL(*schema, *from)
		if err != nil {
			return usagef("%v", err)
		}
		_, err = fmt.Fprint(c.process.stdout, text)
		return err
	}
}
