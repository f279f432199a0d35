package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/hookferry/analytics/cmd/hookferry/internal/config"
	"github.com/hookferry/analytics/cmd/hookferry/internal/server"
	"github.com/hookferry/analytics/webhook/filequeue"
	"github.com/hookferry/analytics/webhook/pgqueue"
)

// dataFlag defines the flag with the data folder whose store a command reads.
func dataFlag(o *options) *string {
	data := o.String("data", config.DefaultData, "data `folder` of serve")
	o.variable("data", nil)
	return data
}

// found is the JSON output about a store: its counts, and the parts that are missing.
type found struct {
	Waiting   int      `json:"waiting"`
	Dead      int      `json:"dead"`
	Delivered int      `json:"delivered"`
	Settings  int      `json:"settings"`
	Missing   []string `json:"missing"`
}

// read calls the function read, which checks or rescues a store, and shows its progress on standard
// error.
func (c *call) read(read func(progress func(read, of int64)) (filequeue.Report, error)) (filequeue.Report, found, error) {
	m := newMeter(c.screen(c.stderr), "read")
	m.amount = func(bytes float64) string { return fmt.Sprintf("%.1f MB", bytes/1e6) }
	r, err := read(func(read, of int64) { m.show(read, of, -1) })
	m.end()
	return r, found{r.Waiting, r.Dead, r.Delivered, r.Settings, append([]string{}, r.Missing...)}, err
}

// print prints f, and then a last line. With --json it prints the value all instead.
func (f found) print(c *call, all any, format string, args ...any) error {
	if c.json {
		return printJSON(c.stdout, all)
	}
	fmt.Fprintf(c.stdout, "waiting: %s, dead letters: %s, delivered and kept: %s, settings: %s, missing: %s\n",
		grouped(f.Waiting), grouped(f.Dead), grouped(f.Delivered), grouped(f.Settings), grouped(len(f.Missing)))
	for _, what := range f.Missing {
		fmt.Fprintln(c.stdout, "missing:", what)
	}
	_, err := fmt.Fprintf(c.stdout, format+"\n", args...)
	return err
}

func checkStore(o *options) action {
	o.jsonFlag()
	data := dataFlag(o)
	return func(ctx context.Context, c *call) error {
		folder := server.StorePath(*data)
		r, f, err := c.read(func(progress func(read, of int64)) (filequeue.Report, error) {
			return filequeue.Check(ctx, folder, progress)
		})
		switch {
		case errors.Is(err, context.Canceled):
			return errors.New("interrupted")
		case len(r.Missing) > 0:
			err = fmt.Errorf("%s is damaged; 'hookferry store rescue --data %s --to FOLDER' writes what can be read to a new folder", folder, *data)
		case err != nil:
			return err
		}
		all := struct {
			found
			Bytes  int64 `json:"bytes"`
			Needed int64 `json:"needed"`
		}{f, r.Bytes, r.Needed}
		return errors.Join(err, f.print(c, all, "%s bytes, of which %s are needed", grouped(r.Bytes), grouped(r.Needed)))
	}
}

func rescueStore(o *options) action {
	to := o.String("to", "", "`folder` to write, which must not exist")
	o.jsonFlag()
	data := dataFlag(o)
	return func(ctx context.Context, c *call) error {
		if *to == "" {
			return usagef("--to: want the folder to write")
		}
		from := server.StorePath(*data)
		_, f, err := c.read(func(progress func(read, of int64)) (filequeue.Report, error) {
			return filequeue.Rescue(ctx, from, *to, progress)
		})
		switch {
		case errors.Is(err, context.Canceled):
			return errors.New("interrupted; there is no new store, and the old one is as it was")
		case err != nil:
			return err
		}
		all := struct {
			found
			Folder string `json:"folder"`
		}{f, *to}
		return f.print(c, all, "To use it: move %s away, and %s in its place", from, *to)
	}
}

func storeSQL(o *options) action {
	schema := o.String("schema", pgqueue.DefaultSchema, "`name` of the schema")
	from := o.number("from", 0, 0, 1_000_000, "`version` that the schema has, as the server says that refuses to start; 0 if it is not there")
	return func(_ context.Context, c *call) error {
		text, err := pgqueue.SQL(*schema, *from)
		if err != nil {
			return usagef("%v", err)
		}
		_, err = fmt.Fprint(c.stdout, text)
		return err
	}
}
