package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/hookferry/analytics/cmd/hookferry/internal/server"
	"github.com/hookferry/analytics/webhook/boltqueue"
)

const storeHelp = `Usage: hookferry store check|compact|rescue [flags]

Store looks after the file that serve keeps in its data folder. No server may be
running on it.

  check    read all of it, and print what it holds and what is wrong with it
  compact  write it anew, without the space that is free in it
  rescue   write what can be read of a damaged one to a new file

Examples:
  hookferry store check
  hookferry store compact -data /var/lib/hookferry
  hookferry store rescue -to rescued.db
`

func storeCommands() []command {
	return []command{
		{name: "check", summary: "read all of it, and print what it holds and what is wrong with it", help: storeHelp, define: checkStore},
		{name: "compact", summary: "write it anew, without the space that is free in it", help: storeHelp, define: compactStore},
		{name: "rescue", summary: "write what can be read of a damaged one to a new file", help: storeHelp, define: rescueStore},
	}
}

// storeFlag is the folder that an action is about.
func storeFlag(o *options) *string {
	return o.text("data", defaultData, "data `folder` of serve")
}

// What the actions print with -json.
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
	return func(_ context.Context, _ []string, p process) error {
		r, err := boltqueue.Check(filepath.Join(*data, server.DataFile))
		if errors.Is(err, boltqueue.ErrDamaged) {
			return fmt.Errorf("%w; 'hookferry store rescue -data %s -to FILE' writes what can be read to a new file", err, *data)
		}
		if err != nil {
			return err
		}
		if *asJSON {
			return printJSON(p.stdout, checked(r))
		}
		_, err = fmt.Fprintf(p.stdout, "%d deliveries wait, %d dead letters; %d bytes, of which %d are free, and a journal of %d bytes\n",
			r.Waiting, r.Dead, r.Bytes, r.Free, r.Journal)
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
		_, err = fmt.Fprintf(p.stdout, "%d bytes before, %d bytes now\n", before, after)
		return err
	}
}

func rescueStore(o *options) action {
	to := o.text("to", "", "`file` to write, which must not exist")
	asJSON := jsonFlag(o)
	o.noVariables()
	data := storeFlag(o)
	return func(_ context.Context, _ []string, p process) error {
		if *to == "" {
			return usagef("-to: want the file to write")
		}
		from := filepath.Join(*data, server.DataFile)
		r, err := boltqueue.Rescue(from, *to)
		if err != nil {
			return err
		}
		if *asJSON {
			return printJSON(p.stdout, rescued{r.Waiting, r.Dead, r.Members, r.Lost, *to})
		}
		fmt.Fprintf(p.stdout, "%v\n", r)
		_, err = fmt.Fprintf(p.stdout, "To use it: move %s and %s.journal away, and %s in the place of the former\n", from, from, *to)
		return err
	}
}
