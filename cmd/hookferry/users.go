package main

import (
	"context"
	"fmt"
	"io"
	"iter"
	"os"
	"sync/atomic"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
)

const deleteUserHelp = `Delete-user tells destinations to delete users: each destination that is
enabled, once for each source that it serves. Users are named by their ids, or
by a file with one id a line; - is standard input.

If it is interrupted, say it again with the same --id, and nobody is told twice.

Examples:
  hookferry delete-user u1 u2
  hookferry delete-user --id request-17 --source web --file users.txt
`

func deleteUsers(o *options) action {
	id := o.text("id", "", "`name` of the request; under the same name it is the same request")
	sources := o.list("source", "`name` of a source that is affected; may be repeated; all, if it is left out", lines)
	file := o.text("file", "", "`file` of users, one a line; - is standard input")
	f := newAdminFlags(o)
	return f.action(func(ctx context.Context, c *api.Client, users []string, p process) error {
		deletion := api.Deletion{ID: *id, Users: users, Sources: *sources}
		var stream iter.Seq2[api.Progress, error]
		var part func() float64
		switch {
		case (len(users) == 0) == (*file == ""):
			return usagef("want ids of users, or --file; one of them")
		case *file == "":
			stream = c.Delete(ctx, deletion)
		default:
			u, err := openUpload(*file, p)
			if err != nil {
				return err
			}
			defer u.Close()
			stream, part = c.DeleteLines(ctx, deletion, u), u.part
		}
		end, err := follow(ctx, newMeter(p.screen(p.stderr), "told"), jsonOut(*f.json, p), part, stream)
		if err != nil || *f.json {
			return err
		}
		_, err = fmt.Fprintf(p.stdout, "deletion of %s on its way\n", counted(end.Done, "user"))
		return err
	})
}

const eraseUserHelp = `Erase-user removes what the server has stored of users: deliveries that wait,
dead letters and the history. Destinations are not told; delete-user does that.
Deliveries that are being attempted are left and counted: say it again.

Examples:
  hookferry erase-user u1 --yes
`

func eraseUsers(o *options) action {
	yes := o.boolean("yes", "do not ask")
	f := newAdminFlags(o)
	return f.action(func(ctx context.Context, c *api.Client, users []string, p process) error {
		if len(users) == 0 {
			return usagef("want ids of users")
		}
		if !*yes {
			if err := confirm(ctx, p, fmt.Sprintf("erase what is stored of %s?", counted(len(users), "user"))); err != nil {
				return err
			}
		}
		for _, user := range users {
			e, err := c.Erase(ctx, user)
			switch {
			case err != nil:
				return fmt.Errorf("%s: %w", user, err)
			case *f.json:
				err = printJSON(p.stdout, e)
			case e.Claimed > 0:
				_, err = fmt.Fprintf(p.stdout, "%s: %d erased, %d left that are being attempted; say it again\n", clean(user), e.Erased, e.Claimed)
			default:
				_, err = fmt.Fprintf(p.stdout, "%s: %d erased\n", clean(user), e.Erased)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// An upload is a file that is sent, with how much of it was read.
type upload struct {
	io.ReadCloser
	size int64 // 0: not known
	read atomic.Int64
}

// openUpload opens a file, or standard input for "-".
func openUpload(name string, p process) (*upload, error) {
	if name == "-" {
		return &upload{ReadCloser: io.NopCloser(p.stdin)}, nil
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, err
	}
	u := &upload{ReadCloser: f}
	if info.Mode().IsRegular() {
		u.size = info.Size()
	}
	return u, nil
}

func (u *upload) Read(b []byte) (int, error) {
	n, err := u.ReadCloser.Read(b)
	u.read.Add(int64(n))
	return n, err
}

// part is how much was read; below 0 it is not known.
func (u *upload) part() float64 {
	if u.size == 0 {
		return -1
	}
	return float64(u.read.Load()) / float64(u.size)
}
