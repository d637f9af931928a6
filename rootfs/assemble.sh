#!/bin/sh
# assemble.sh minimal|base OUT: lays out the tree of an image and makes the
# ext4 file OUT of it. Called by rootfs/build, as root or under fakeroot, with
#   AGENT    the static guest agent
#   BUSYBOX  the static busybox (minimal)
#   TAR      the installed Debian system (base)
#   EPOCH    the time that files and file system carry, seconds since 1970
#   KEY      hexadecimal digits that name the inputs; the UUID comes from them
set -eu
umask 022
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
name=$1 out=$2
tree=$out.tree
mkdir -p "$tree"
cd "$tree"

# write FILE: stdin becomes FILE, mode 644.
write() { cat >"$1" && chmod 644 "$1"; }

minimal_tree() {
	mkdir -m 755 bin sbin dev etc home mnt opt proc run sys usr usr/bin usr/sbin var
	mkdir -m 700 root
	mkdir -m 1777 tmp var/tmp
	ln -s ../run var/run
	install -m 755 "$BUSYBOX" bin/busybox
	"$BUSYBOX" --list-full | grep -v -x -e bin/busybox -e sbin/init |
		while read -r applet; do ln -s /bin/busybox "$applet"; done
	write etc/passwd <<-'END'
	root:x:0:0:root:/root:/bin/sh
	END
	write etc/group <<-'END'
	root:x:0:
	tty:x:5:
	END
	write etc/shadow <<-'END'
	root:*:20454::::::
	END
	chmod 600 etc/shadow
	shell=/bin/sh
	journal='-O ^has_journal' journal_mib=0 slack_mib=2 spare_inodes=256
}

base_tree() {
	# devtmpfs fills /dev, and not everybody may make device nodes.
	tar -x -p --numeric-owner --exclude='./dev/*' -f "$TAR"
	shell=/bin/bash
	journal='-J size=16' journal_mib=16 slack_mib=64 spare_inodes=16384
}

# Whatever names the machine that built the image is replaced by fixed text.
common_tree() {
	install -m 755 "$AGENT" sbin/coppice-agent
	ln -sf coppice-agent sbin/init
	echo "user:x:1000:1000:user:/home/user:$shell" >>etc/passwd
	echo 'user:x:1000:' >>etc/group
	echo 'user:*:20454::::::' >>etc/shadow
	mkdir -m 755 home/user
	[ ! -d etc/skel ] || cp -r etc/skel/. home/user
	chown -R 1000:1000 home/user
	echo coppice | write etc/hostname
	write etc/hosts <<-'END'
	127.0.0.1 localhost coppice
	::1 localhost ip6-localhost ip6-loopback
	END
	write etc/resolv.conf </dev/null
	write etc/machine-id </dev/null
}

# Sizes come from what the files hold, never from the blocks that the build
# machine's own file system gave them.
measure() {
	find . -printf '%i %s %y\n' | sort -u -k 1,1n | awk '
		{ inodes++ }
		$3 == "f" || $3 == "d" { blocks += int(($2 + 4095) / 4096) }
		END { print inodes, blocks }'
}

make_ext4() {
	find . -newermt "@$EPOCH" -exec touch -h -d "@$EPOCH" {} +
	measured=$(measure)
	inodes=$((${measured% *} + spare_inodes))
	# Inode tables (16 inodes a block), 1/64 for bitmaps and extent blocks, the
	# journal, the slack; whole MiB, so that every block size divides the length.
	blocks=$((${measured#* } + inodes / 16))
	mib=$(((blocks + blocks / 64) / 256 + journal_mib + slack_mib + 1))
	uuid=$(printf %s "$KEY" | sha256sum |
		sed 's/^\(.\{8\}\)\(.\{4\}\)\(.\{3\}\)\(.\{3\}\)\(.\{12\}\).*/\1-\2-8\3-8\4-\5/')
	export E2FSPROGS_FAKE_TIME="$EPOCH" SOURCE_DATE_EPOCH="$EPOCH"

	rm -f "$out"
	truncate -s "${mib}M" "$out"
	# shellcheck disable=SC2086 # $journal is a list of options
	MKE2FS_CONFIG=$here/mke2fs.conf mke2fs -q -t ext4 -m 0 -N "$inodes" $journal \
		-L "coppice-$name" \
		-U "$uuid" -E "hash_seed=$uuid,root_owner=0:0,lazy_itable_init=0,nodiscard" \
		-d . "$out"
	# It leaves a last block group out that would hold little but its own tables.
	truncate -s "$(dumpe2fs -h "$out" 2>/dev/null |
		awk '/^Block count:/ { printf "%.0f", $3 * 4096 }')" "$out"

	# mke2fs copies the inode change time, which nobody can set on the build
	# machine, and the access time. It numbers inodes without a gap from 1.
	used=$(dumpe2fs -h "$out" 2>/dev/null |
		awk '/^Inode count:/ { count = $3 } /^Free inodes:/ { print count - $3 }')
	seq 11 "$used" | sed "s/.*/sif <&> ctime @$EPOCH\nsif <&> atime @$EPOCH/" |
		debugfs -w -f - "$out" >/dev/null
	e2fsck -f -n "$out"
}

case $name in
minimal) minimal_tree ;;
base) base_tree ;;
esac
common_tree
make_ext4
cd /
rm -rf "$tree"
