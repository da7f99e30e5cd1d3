package exe_test

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"codeberg.org/sbinet/npyio"
	"github.com/stretchr/testify/require"

	"reprise/runtime/internal/fixture"
)

// le is little-endian bytes of numbers.
func le(t testing.TB, xs any) []byte {
	t.Helper()
	b, err := binary.Append(nil, binary.LittleEndian, xs)
	require.NoError(t, err)
	return b
}

// npy is an .npy file as numpy writes it.
func npy(descr, shape string, data []byte) []byte {
	h := fmt.Sprintf("{'descr': '%s', 'fortran_order': False, 'shape': %s, }", descr, shape)
	h += strings.Repeat(" ", 63-(10+len(h))%64) + "\n"
	return append([]byte("\x93NUMPY\x01\x00"+string([]byte{byte(len(h)), byte(len(h) >> 8)})+h), data...)
}

// npz is a zip archive with these files.
func npz(t testing.TB, method uint16, files ...any) []byte {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for i := 0; i < len(files); i += 2 {
		w, err := z.CreateHeader(&zip.FileHeader{Name: files[i].(string), Method: method})
		require.NoError(t, err)
		_, err = w.Write(files[i+1].([]byte))
		require.NoError(t, err)
	}
	require.NoError(t, z.Close())
	return b.Bytes()
}

func i32s(t testing.TB, data []byte) []int32 {
	t.Helper()
	xs := make([]int32, len(data)/4)
	_, err := binary.Decode(data, binary.LittleEndian, xs)
	require.NoError(t, err)
	return xs
}

// fed runs so many steps and returns the last one's tokens and targets.
func (p program) fed(steps string, args ...string) (tokens, targets []int32) {
	p.t.Helper()
	p.lines(append([]string{"--steps", steps, "--save", "fed.safetensors"}, args...)...)
	file := p.read("fed.safetensors")
	return i32s(p.t, tensor(p.t, file, "seen_tokens")), i32s(p.t, tensor(p.t, file, "seen_targets"))
}

func TestTokens(t *testing.T) {
	lm := buildProgram(t, fixture.LM(":200"))
	text := make([]byte, 1000) // text[i] tells i apart in windows of two
	for i := range text {
		text[i] = byte((i*i*7 + i*13 + i/10) % 199)
	}

	t.Run("windows", func(t *testing.T) {
		p := lm.at(t)
		p.write("text", text)
		seen := map[string]bool{}
		for step := 1; step <= 6; step++ {
			tokens, targets := p.fed(fmt.Sprint(step), "--data", "text")
			for row := range 4 {
				window := make([]byte, 0, 9)
				for i := range 8 {
					window = append(window, byte(tokens[row*8+i]))
					if i < 7 {
						require.Equal(t, tokens[row*8+i+1], targets[row*8+i], "targets are the tokens one later")
					}
				}
				window = append(window, byte(targets[row*8+7]))
				require.True(t, bytes.Contains(text, window))
				seen[string(window)] = true
			}
		}
		require.Greater(t, len(seen), 20, "rows and steps differ")
	})

	t.Run("order depends on seed and step alone", func(t *testing.T) {
		p := lm.at(t)
		p.write("text", text)
		a, _ := p.fed("3", "--data", "text", "--threads", "1")
		b, _ := p.fed("3", "--data", "text", "--threads", "3")
		require.Equal(t, a, b)
		c, _ := p.fed("3", "--data", "text", "--seed", "1")
		require.NotEqual(t, a, c)
		p.fed("2", "--data", "text")
		d, _ := p.fed("1", "--data", "text", "--resume", "fed.safetensors")
		require.Equal(t, a, d)
	})

	t.Run("every position is drawn", func(t *testing.T) {
		p := lm.at(t)
		p.write("text", text[:12]) // 12 − 8 positions
		starts := map[int32]bool{}
		for step := 1; step <= 8; step++ {
			tokens, _ := p.fed(fmt.Sprint(step), "--data", "text")
			for row := range 4 {
				starts[tokens[row*8]] = true
			}
		}
		require.Len(t, starts, 4)
	})

	t.Run("a stream of tokens in npy, npz, safetensors", func(t *testing.T) {
		p := lm.at(t)
		p.write("text", text)
		want, wantTargets := p.fed("2", "--data", "text")
		wide := make([]uint16, len(text))
		for i, b := range text {
			wide[i] = uint16(b)
		}
		var b bytes.Buffer
		require.NoError(t, npyio.Write(&b, wide))
		p.write("a.npy", b.Bytes())
		p.write("b.npz", npz(t, zip.Store, "tokens.npy", b.Bytes()))
		p.write("c.safetensors", makeSafetensors(`{"tokens":{"dtype":"U8","shape":[1000],"data_offsets":[0,1000]}}`, text))
		for _, file := range []string{"a.npy", "b.npz", "c.safetensors"} {
			tokens, targets := p.fed("2", "--data", file)
			require.Equal(t, want, tokens, file)
			require.Equal(t, wantTargets, targets, file)
		}
	})

	t.Run("rows with targets", func(t *testing.T) {
		p := lm.at(t)
		var tokens, targets []int64
		for i := range int64(5 * 8) {
			tokens, targets = append(tokens, i), append(targets, 100+i)
		}
		p.write("rows.npz", npz(t, zip.Store, "tokens.npy", npy("<i8", "(5, 8)", le(t, tokens)), "targets.npy", npy("<i8", "(5, 8)", le(t, targets)), "readme.txt", []byte("x")))
		a, b := p.fed("2", "--data", "rows.npz")
		for i := range a {
			require.Equal(t, a[i]+100, b[i], "the same row of both")
			require.Equal(t, int32(i%8), a[i]%8)
		}
	})

	t.Run("synthetic", func(t *testing.T) {
		p := lm.at(t)
		tokens, targets := p.fed("2")
		regular := 0
		for i := range tokens {
			require.True(t, 0 <= tokens[i] && tokens[i] < 200)
			if i%8 < 7 {
				require.Equal(t, tokens[i+1], targets[i])
			}
			if targets[i] == (5*tokens[i]+7)%200 {
				regular++
			}
		}
		require.Greater(t, regular, 20, "can be learned")
		again, _ := p.fed("2")
		require.Equal(t, tokens, again)
		other, _ := p.fed("3")
		require.NotEqual(t, tokens, other)
	})

	t.Run("tokens per second", func(t *testing.T) {
		ls := lm.at(t).lines("--steps", "1")
		require.InEpsilon(t, 32/ls[0].MS*1e3, ls[0].TokensPerS, 0.5)
		require.Positive(t, ls[1].TokensPerS)
	})

	t.Run("errors", func(t *testing.T) {
		p := lm.at(t)
		p.write("text", text)
		p.write("short", text[:8])
		p.write("high", bytes.Repeat([]byte{201}, 9))
		p.write("empty", nil)
		inputs := "the model's inputs are targets i32[4,8], tokens i32[4,8]"
		p.fails("data", "cannot open none: No such file or directory", "look at the path: it is taken from the directory that the program runs in", "--data", "none")
		p.fails("data", ". is not a regular file", "", "--data", ".")
		p.fails("data", "short is too short: a window of 8 tokens and its successor needs 9 bytes, it has 8", "", "--data", "short")
		p.fails("data", "empty is too short: a window of 8 tokens and its successor needs 9 bytes, it has 0", "", "--data", "empty")
		p.fails("data", `high: element 1, for input "targets", is 201; it must lie in 0 … 199`, "", "--data", "high")
		p.write("a.npy", npy("<f4", "(2,)", make([]byte, 8)))
		p.fails("data", "a.npy is one array, the model has 2 inputs; give a .npz or .safetensors file with arrays of their names", inputs, "--data", "a.npy")
		p.write("b.npz", npz(t, zip.Store, "other.npy", npy("<i4", "(2,)", make([]byte, 8))))
		p.fails("data", `b.npz has no array "targets"`, inputs, "--data", "b.npz")
		p.write("c.npz", npz(t, zip.Deflate, "tokens.npy", npy("<i4", "(2,)", make([]byte, 8))))
		p.fails("data", `array "tokens" of c.npz is compressed`, "save it with numpy.savez, not savez_compressed", "--data", "c.npz")
		p.write("d.npz", []byte("PK"))
		p.fails("data", "d.npz is not a complete .npz file: it has no zip directory", "", "--data", "d.npz")
		p.write("e.npz", npz(t, zip.Store, "tokens.npy", npy("<i4", "(5, 8)", make([]byte, 160)), "targets.npy", npy("<i4", "(6, 8)", make([]byte, 192))))
		p.fails("data", `e.npz has 5 rows for input "tokens" and 6 for another`, "", "--data", "e.npz")
		p.write("f.npz", npz(t, zip.Store, "tokens.npy", npy("<i4", "(5, 9)", make([]byte, 180)), "targets.npy", npy("<i4", "(5, 8)", make([]byte, 160))))
		p.fails("data", `f.npz has i32[5,9] for input "tokens", which is i32[4,8]`, "it takes an array of any number of rows N, [N,8]", "--data", "f.npz")
		p.write("g.npz", npz(t, zip.Store, "tokens.npy", npy("<i4", "(0, 8)", nil), "targets.npy", npy("<i4", "(0, 8)", nil)))
		p.fails("data", `g.npz is too short: input "targets" needs at least one row`, "", "--data", "g.npz")
		good := npz(t, zip.Store, "tokens.npy", npy("<i4", "(5, 8)", make([]byte, 160)), "targets.npy", npy("<i4", "(5, 8)", make([]byte, 160)))
		for i := range good { // no damage goes further than a message
			if i%7 == 0 {
				p.write("h.npz", good[:i])
				require.Equal(t, 1, p.run("--steps", "1", "--data", "h.npz").status)
			}
			bad := bytes.Clone(good)
			bad[i] ^= byte(1 << (i % 8))
			if i%5 == 0 {
				p.write("h.npz", bad)
				require.Contains(t, []int{0, 1}, p.run("--steps", "1", "--threads", "1", "--data", "h.npz").status)
			}
		}
	})

	t.Run("a file that changes", func(t *testing.T) {
		for name, change := range map[string]func(path string) error{
			"longer": func(path string) error {
				f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
				if err != nil {
					return err
				}
				defer f.Close()
				_, err = f.WriteString("x")
				return err
			},
			"shorter": func(path string) error { return os.Truncate(path, 5) },
			"touched": func(path string) error { return os.WriteFile(path, text, 0o666) },
		} {
			t.Run(name, func(t *testing.T) {
				p := lm.at(t)
				p.write("text", text)
				r := p.start(func(*os.Process) { require.NoError(t, change(filepath.Join(p.dir, "text"))) }, "--steps", "4000000000", "--data", "text", "--save", "c.safetensors")
				require.Equal(t, 1, r.status)
				ls := parse(t, r.stdout)
				steps := ls[len(ls)-2].Step
				rest := p.lines("--steps", "0", "--resume", "c.safetensors")
				require.Equal(t, steps, rest[0].Step, "what was learned is not lost")
				e := ls[len(ls)-1].Error
				require.NotNil(t, e)
				require.Equal(t, "changed", e.Code)
				require.Regexp(t, `^text changed while it was read: it had 1000 bytes, now it has \d+$`, e.Message)
				require.Equal(t, fmt.Sprintf("leave the file alone while the program runs, or give it a copy; c.safetensors has the state after step %d", steps), e.Hint)
			})
		}
	})
}

func TestNamedInputs(t *testing.T) {
	toy := buildProgram(t, fixture.Train()) // x f32[4,256], feed normal
	rows := make([]float64, 3*256)
	for i := range rows {
		rows[i] = math.Sin(float64(i))
	}
	narrow := make([]float32, len(rows))
	for i, x := range rows {
		narrow[i] = float32(x)
	}

	t.Run("rows of any floating type", func(t *testing.T) {
		p := toy.at(t)
		p.write("a.npy", npy("<f4", "(3, 256)", le(t, narrow)))
		p.write("b.npy", npy("<f8", "(3, 256)", le(t, rows)))
		p.write("c.npz", npz(t, zip.Store, "x.npy", npy("<f8", "(3, 256)", le(t, rows))))
		p.write("d.safetensors", makeSafetensors(`{"x":{"dtype":"F32","shape":[3,256],"data_offsets":[0,3072]}}`, le(t, narrow)))
		want := bits(p.lines("--steps", "4", "--data", "a.npy"))
		for _, file := range []string{"b.npy", "c.npz", "d.safetensors"} {
			require.Equal(t, want, bits(p.lines("--steps", "4", "--data", file)), file)
		}
		require.NotEqual(t, want, bits(p.lines("--steps", "4")))
	})

	t.Run("errors", func(t *testing.T) {
		p := toy.at(t)
		inputs := "the model's inputs are x f32[4,256]"
		p.write("text", []byte("plain"))
		p.fails("data", `text is plain bytes, which cannot feed input "x"; give a .npz or .safetensors file with an array of that name`, inputs, "--data", "text")
		for _, c := range []struct {
			file          []byte
			message, hint string
		}{
			{npy("<i4", "(3, 256)", make([]byte, 3072)), `a.npy has i32[3,256] for input "x", which is f32[4,256]`, ""},
			{npy("<f4", "(3, 255)", make([]byte, 3060)), `a.npy has f32[3,255] for input "x", which is f32[4,256]`, "it takes an array of any number of rows N, [N,256]"},
			{npy("<f4", "(256,)", make([]byte, 1024)), `a.npy has f32[256] for input "x", which is f32[4,256]`, "it takes an array of any number of rows N, [N,256]"},
			{npy(">f4", "(3, 256)", make([]byte, 3072)), `a.npy has element type >f4, which is not supported`, "save it as a little-endian bool, integer or floating array"},
			{npy("<c8", "(3, 256)", make([]byte, 3072)), `a.npy has element type <c8, which is not supported`, "save it as a little-endian bool, integer or floating array"},
			{npy("<f4", "(3, 256)", make([]byte, 3071)), `a.npy is cut short: its data takes 3072 bytes, 3071 are there`, ""},
			{npy("<f4", "(3, 256)", nil)[:40], `a.npy is cut short: 40 bytes, its header alone takes 128`, ""},
			{[]byte("\x93NUM"), `a.npy is cut short: 4 bytes`, ""},
			{make([]byte, 100), `a.npy is not an .npy file`, ""},
			{npy("<f4", "(-3, 256)", nil), `a.npy has a malformed shape`, ""},
			{npy("<f4", "(4000000000, 4000000000)", nil), `a.npy has a malformed shape`, ""},
			{bytes.Replace(npy("<f4", "(3, 256)", make([]byte, 3072)), []byte("False"), []byte("True "), 1), "a.npy is in Fortran order", "save numpy.ascontiguousarray(x)"},
			{bytes.Replace(npy("<f4", "(3, 256)", make([]byte, 3072)), []byte("'descr'"), []byte("'desc' "), 1), "a.npy has a malformed .npy header", ""},
		} {
			p := p.at(t)
			p.write("a.npy", c.file)
			p.fails("data", c.message, c.hint, "--data", "a.npy")
		}
	})
}
