package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/hookferry/analytics/signature"
)

const (
	keyHelp = `Key makes keys for signatures of Standard Webhooks that receivers verify with a
public key: who has only that can verify, and not sign.

'hookferry key COMMAND -h' explains a command.
`
	keyNewHelp = `New writes a private key to a file that is not there yet, for its owner alone,
and prints the public key, which is for receivers. Destinations sign with it
by --standard-secret file:webhook.key, or standardSecrets in the configuration:
with the old and the new key while receivers change over.

Examples:
  hookferry key new webhook.key
`
	keyPublicHelp = `Public prints the public key of the private key in a file.

Examples:
  hookferry key public webhook.key > webhook.pub
`
)

func newKey(o *options) action {
	o.noVariables()
	return func(_ context.Context, args []string, p process) error {
		if len(args) != 1 {
			return usagef("want the file to write the private key to")
		}
		f, err := os.OpenFile(args[0], os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		private := signature.NewStandardPrivateKey()
		_, err = io.WriteString(f, private.Reveal()+"\n")
		if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
			return errors.Join(err, os.Remove(args[0]))
		}
		return printPublic(p, private)
	}
}

func publicKey(o *options) action {
	o.noVariables()
	return func(_ context.Context, args []string, p process) error {
		if len(args) != 1 {
			return usagef("want the file that has the private key")
		}
		b, err := os.ReadFile(args[0])
		if err != nil {
			return err
		}
		return printPublic(p, signature.Secret(strings.TrimSpace(string(b))))
	}
}

func printPublic(p process, private signature.Secret) error {
	public, err := signature.StandardPublicKey(private)
	if err != nil {
		return errors.New(`the file has no private key: "whsk_" and the base64 of an Ed25519 key`)
	}
	_, err = fmt.Fprintln(p.stdout, public)
	return err
}
