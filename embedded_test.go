package analytics_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"testing"
)

// embeds are the structs that embed another one for its methods, each with the reason. They are the
// thing that they embed.
var embeds = map[string]string{
	module + "/internal/disk.file":                     "is a disk.File, as an os.File is",
	module + "/cmd/hookferry/internal/metrics.Metrics": "is a webhook.Observer, as the Metrics of webhookprom are",
	module + "/cmd/hookferry.command":                  "is the flags of a command, which define and check themselves",
}

// TestPartsHaveNames checks that a struct reaches the methods of its parts by their names, so that a
// line says what it may touch, and that the methods of a type have one name for their receiver. An
// interface may be embedded, and so may data: a type without methods, or an exported one by value.
func TestPartsHaveNames(t *testing.T) {
	support := []string{module + "/audience/rostertest", module + "/analyticstest", module + "/tenants/tenantstest", module + "/webhook/queuetest",
		module + "/webhook/internal/bench", module + "/internal/faulty", module + "/examples/..."}
	used := make(map[string]bool)
	for _, p := range goList(t, "linux") {
		if p.DepOnly || matches(support, p.ImportPath) {
			continue
		}
		receivers, structs := make(map[string][]string), make(map[string]*ast.StructType)
		for _, name := range p.GoFiles {
			f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, name), nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(f, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.TypeSpec:
					if s, ok := n.Type.(*ast.StructType); ok {
						structs[n.Name.Name] = s
					}
				case *ast.FuncDecl:
					if n.Recv != nil {
						of, _ := embedded(n.Recv.List[0].Type)
						names := receivers[of]
						if r := n.Recv.List[0].Names; len(r) == 1 && r[0].Name != "_" && !slices.Contains(names, r[0].Name) {
							names = append(names, r[0].Name)
						}
						receivers[of] = names
					}
				}
				return true
			})
		}
		for of, names := range receivers {
			if len(names) > 1 {
				t.Errorf("%s: the methods of %s call their receiver %q, want one name", p.ImportPath, of, names)
			}
		}
		for of, s := range structs {
			for _, f := range s.Fields.List {
				part, pointer := embedded(f.Type)
				_, methods := receivers[part]
				if other := part == ""; len(f.Names) > 0 || other && !pointer || !other && (!methods || !pointer && ast.IsExported(part)) {
					continue
				}
				if what := p.ImportPath + "." + of; embeds[what] == "" {
					t.Errorf("%s embeds %s: give the part a name", what, part)
				} else {
					used[what] = true
				}
			}
		}
	}
	for what := range embeds {
		if !used[what] {
			t.Errorf("%s embeds no part any more: remove it from embeds", what)
		}
	}
}

// embedded returns the name of an embedded type, or of the type of a receiver. It is empty if the type is
// of another package.
func embedded(e ast.Expr) (name string, pointer bool) {
	switch x := e.(type) {
	case *ast.StarExpr:
		name, _ = embedded(x.X)
		return name, true
	case *ast.IndexExpr:
		return embedded(x.X)
	case *ast.IndexListExpr:
		return embedded(x.X)
	case *ast.Ident:
		return x.Name, false
	}
	return "", false
}
