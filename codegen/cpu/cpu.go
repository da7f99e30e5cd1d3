// Package cpu turns kernels into x86-64 objects, by LLVM IR and clang.
package cpu

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/llir/llvm/ir"
	"github.com/llir/llvm/ir/enum"
	"golang.org/x/sync/errgroup"

	"reprise/internal/diag"
	"reprise/ir/kern"
)

// Unit collects the kernels of one model and compiles them. Equal kernels are
// emitted once, whatever their names. Symbols are a name and a hash of the content, so
// the same kernels give the same objects.
type Unit struct {
	target  Target
	parts   []*part
	helpers []*ir.Func // functions that kernels share, in the order in which they came
	done    map[string][]Launch
	bodies  map[string]shared // by the shape of a kernel

	Objects *Objects // compiled before; nil: none
	lanes   int      // of a vector in kernels of the loop language; 0: those of the target's registers
}

// shared is the code of kernels that differ in the ids of their random ops only.
type shared struct {
	m     *ir.Module
	f     *ir.Func
	tiles int64
}

// Launch is one function of the compiled code as the driver runs it.
type Launch struct {
	Symbol    string
	Tiles     int64
	Workspace int64 // bytes of arena workspace, passed as the last argument; 0: none
}

// NewUnit starts a unit.
func NewUnit(t Target) *Unit {
	return &Unit{target: t, done: map[string][]Launch{}, bodies: map[string]shared{}}
}

// Kernel adds a kernel of the loop language, which it checks. Kernels that differ in
// the ids of their random ops only share their code.
func (u *Unit) Kernel(k *kern.Kernel) (Launch, error) {
	shape, ids := k.Shape()
	text := shape
	if len(ids) > 0 {
		text = fmt.Sprintf("%srandom %v\n", shape, ids)
	}
	if ls, ok := u.done[text]; ok {
		return ls[0], nil
	}
	symbol := symbolOf(k.Name, text)
	body, ok := u.bodies[shape]
	if !ok {
		if err := kern.Check(k); err != nil {
			return Launch{}, err
		}
		name, linkage := symbol, enum.LinkageNone
		if len(ids) > 0 {
			name, linkage = symbolOf(k.Name, shape), enum.LinkageInternal
		}
		p := u.part(name)
		f, err := emitKernel(p.m, k, u.target, cmp.Or(u.lanes, u.target.Lanes()), name, ids)
		if err != nil {
			return Launch{}, err
		}
		f.Linkage = linkage
		if len(ids) > 0 {
			f.FuncAttrs = append(f.FuncAttrs, enum.FuncAttrNoInline)
		}
		u.keep(p)
		body = shared{p.m, f, k.Tiles}
		u.bodies[shape] = body
	}
	if len(ids) > 0 {
		emitCall(body.m, body.f, u.target, symbol, ids)
	}
	l := Launch{Symbol: symbol, Tiles: k.Tiles}
	u.done[text] = []Launch{l}
	return l, nil
}

// Contract adds a contraction. Like kernels, contractions that differ in the ids of random ops only
// share their code.
func (u *Unit) Contract(c *kern.Contract) ([]Launch, error) {
	if err := kern.CheckContract(c); err != nil {
		return nil, err
	}
	shape, ids := c.Shape()
	return u.family(c.Name, shape, ids, func(m *ir.Module, symbol string) (*ir.Func, int64, error) {
		return emitContract(m, c, u.target, symbol, ids)
	})
}

// Attention adds an attention or its gradient; layers share the code.
func (u *Unit) Attention(a *kern.Attention) ([]Launch, error) {
	plain := *a
	plain.Name, plain.RNG = "", 0
	var ids []uint32
	if a.Dropout > 0 {
		ids = []uint32{a.RNG}
	}
	return u.family(a.Name, fmt.Sprintf("attention %+v\n", plain), ids, func(m *ir.Module, symbol string) (*ir.Func, int64, error) {
		return emitAttention(m, &plain, u.target, symbol)
	})
}

// family adds a kernel of a hand-scheduled family. put writes the function for a shape, with one
// more parameter for each id; with ids the launched function is a call of it.
func (u *Unit) family(name, shape string, ids []uint32, put func(m *ir.Module, symbol string) (*ir.Func, int64, error)) ([]Launch, error) {
	text := shape
	if len(ids) > 0 {
		text = fmt.Sprintf("%srandom %v\n", shape, ids)
	}
	if ls, ok := u.done[text]; ok {
		return ls, nil
	}
	symbol := symbolOf(name, text)
	body, ok := u.bodies[shape]
	if !ok {
		as := symbol
		if len(ids) > 0 {
			as = symbolOf(name, shape)
		}
		p := u.part(as)
		f, tiles, err := put(p.m, as)
		if err != nil {
			return nil, err
		}
		if f == nil {
			u.done[text] = nil
			return nil, nil
		}
		if len(ids) > 0 {
			f.Linkage = enum.LinkageInternal
			f.FuncAttrs = append(f.FuncAttrs, enum.FuncAttrNoInline)
		}
		u.keep(p)
		body = shared{p.m, f, tiles}
		u.bodies[shape] = body
	}
	if len(ids) > 0 {
		emitCall(body.m, body.f, u.target, symbol, ids)
	}
	ls := []Launch{{Symbol: symbol, Tiles: body.tiles}}
	u.done[text] = ls
	return ls, nil
}

func (u *Unit) add(name, text string, put func(m *ir.Module, symbol string) ([]Launch, error)) ([]Launch, error) {
	if ls, ok := u.done[text]; ok {
		return ls, nil
	}
	p := u.part(symbolOf(name, text))
	ls, err := put(p.m, p.name)
	if err != nil {
		return nil, err
	}
	u.keep(p)
	u.done[text] = ls
	return ls, nil
}

// symbolOf is a legal, speaking and unique function name.
func symbolOf(name, text string) string {
	clean := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' {
			return r
		}
		return '_'
	}, name)
	if len(clean) > 40 {
		clean = clean[:40]
	}
	h := sha256.Sum256([]byte(text))
	return "k_" + clean + "_" + hex.EncodeToString(h[:6])
}

// Modules are the LLVM IR texts of the unit.
func (u *Unit) Modules() []string {
	var out []string
	for _, m := range u.joined() {
		out = append(out, m.String())
	}
	return out
}

// Compile runs clang-19 on the unit's modules, several at a time, and returns the
// paths of the objects, which are written to dir. The objects depend on the kernels and the target only.
func (u *Unit) Compile(ctx context.Context, dir string) ([]string, error) {
	clang, err := exec.LookPath("clang-19")
	if err != nil {
		return nil, errors.New("clang-19 was not found; install it: apt-get install -y clang-19")
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(runtime.GOMAXPROCS(0))
	modules := u.joined()
	out := make([]string, len(modules))
	for i, m := range modules {
		out[i] = filepath.Join(dir, fmt.Sprintf("kernels-%03d.o", i))
		g.Go(func() (err error) {
			defer diag.Recovered(&err)
			text := m.String()
			key := sha256.Sum256([]byte(u.target.String() + "\n" + text))
			if object := u.Objects.find(key); object != nil {
				return os.WriteFile(out[i], object, 0o600)
			}
			cmd := exec.CommandContext(ctx, clang, clangFlags(out[i])...)
			cmd.Stdin = strings.NewReader(text)
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			if err := cmd.Run(); err != nil {
				if ctx.Err() != nil {
					return ctx.Err()
				}
				return fmt.Errorf("clang-19: %w: %s", err, firstLines(stderr.String(), 3))
			}
			if u.Objects == nil {
				return nil
			}
			object, err := os.ReadFile(out[i])
			u.Objects.keep(key, object)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		for _, path := range out {
			_ = os.Remove(path)
		}
		return nil, err
	}
	return out, nil
}

// clangFlags compile IR from standard input. The kernels come vectorised and
// unrolled as they should be; the input's name must not depend on anything.
func clangFlags(to string) []string {
	return []string{"-x", "ir", "-", "-c", "-o", to, "-O2", "-fPIC", "-ffp-contract=off", "-fno-ident",
		"-fno-vectorize", "-fno-slp-vectorize", "-fno-unroll-loops"}
}

func firstLines(s string, n int) string {
	lines := strings.SplitN(s, "\n", n+1)
	if len(lines) > n {
		lines = lines[:n]
	}
	return strings.Join(lines, "\n")
}
