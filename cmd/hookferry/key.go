package main

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"

	"github.com/hookferry/analytics/signature"
)

func newKey(c *command) action {
	return func(context.Context) error {
		name := c.args[0]
		f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		private := signature.NewStandardPrivateKey()
		_, err = io.WriteString(f, private.Reveal()+"\n")
		if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
			return errors.Join(err, os.Remove(name))
		}
		return c.printPublic(private)
	}
}

func publicKey(c *command) action {
	return func(context.Context) error {
		b, err := os.ReadFile(c.args[0])
		if err != nil {
			return err
		}
		return c.printPublic(signature.Secret(strings.TrimSpace(string(b))))
	}
}

func (c *command) printPublic(private signature.Secret) error {
	public, err := signature.StandardPublicKey(private)
	if err != nil {
		return errors.New(`the file has no private key: "whsk_" and the base64 of an Ed25519 key`)
	}
	return c.print(public, "%s", public)
}
