"""Which charset a body is in: the order of evidence, mislabelled pages, and totality."""

# Texts in other scripts are what is tested; their letters look like Latin ones to the rule.
# ruff: noqa: RUF001

import codecs

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from web_tools._charset_labels import CODECS, codec_of, name_of
from web_tools.charset import CharsetSource, Decoded, decode

TEXTS = {
    "japanese": (
        "東京は日本の首都であり、世界最大級の都市の一つです。春には桜が咲き、多くの観光客が訪れます。"
        "駅の近くには古い寺と新しい建物が並んでいて、夜になると通りは明るくにぎやかになります。"
    ),
    "simplified": (
        "北京是中华人民共和国的首都，也是全国的政治和文化中心。这座城市有三千多年的历史，每年吸引大量游客。"
        "春天的时候公园里开满了花，人们喜欢在湖边散步，晚上的街道非常热闹。"
    ),
    "traditional": (
        "臺北是臺灣的首都，也是政治和文化的中心。這座城市有許多夜市，每年吸引大量遊客前來參觀。"
        "春天的時候公園裡開滿了花，人們喜歡在湖邊散步，晚上的街道非常熱鬧。"
    ),
    "korean": (
        "서울은 대한민국의 수도이자 최대 도시이다. 한강을 끼고 있으며 오랜 역사를 가진 궁궐이 많다. "
        "봄에는 벚꽃이 피고 많은 관광객이 찾아오며 밤이 되면 거리가 매우 밝고 활기차다."
    ),
    "russian": (
        "Москва является столицей России и крупнейшим городом страны. Весной в парках цветут деревья, "
        "и многие жители выходят гулять вдоль реки. Вечером улицы становятся яркими и шумными."
    ),
    "ukrainian": (
        "Київ є столицею України та найбільшим містом країни. Навесні в парках цвітуть каштани, "
        "і багато мешканців виходять гуляти вздовж річки. Увечері вулиці стають яскравими."
    ),
    "greek": (
        "Η Αθήνα είναι η πρωτεύουσα της Ελλάδας και η μεγαλύτερη πόλη της χώρας. Την άνοιξη ανθίζουν τα "
        "δέντρα και πολλοί κάτοικοι περπατούν δίπλα στη θάλασσα μέχρι το βράδυ."
    ),
    "hebrew": (
        "ירושלים היא עיר הבירה של מדינת ישראל והעיר הגדולה ביותר בה. באביב פורחים העצים בגנים, "
        "ותושבים רבים יוצאים לטייל ברחובות העתיקים עד שעות הערב המאוחרות."
    ),
    "arabic": (
        "القاهرة هي عاصمة جمهورية مصر العربية وأكبر مدنها. في الربيع تزهر الأشجار في الحدائق ويخرج "
        "الكثير من السكان للتنزه على ضفاف النيل حتى ساعات المساء المتأخرة."
    ),
    "thai": (
        "กรุงเทพมหานครเป็นเมืองหลวงของประเทศไทยและเป็นเมืองที่ใหญ่ที่สุด ในฤดูร้อนมีนักท่องเที่ยวจำนวนมาก "
        "เดินทางมาเที่ยวชมวัดและตลาดน้ำ ตอนกลางคืนถนนสว่างและคึกคักมาก"
    ),
    "polish": (
        "Łódź i Kraków należą do największych miast Polski. Wiosną kwitną drzewa, a mieszkańcy chętnie "
        "spacerują wzdłuż rzeki. Wieczorem ulice stają się głośne, jasne i pełne życia, więc każdy może coś znaleźć."
    ),
    "turkish": (
        "İstanbul, Türkiye'nin en büyük şehridir ve iki kıta üzerine kurulmuştur. İlkbaharda ağaçlar çiçek "
        "açar, insanlar deniz kıyısında yürüyüşe çıkar. Akşamları sokaklar ışıl ışıl ve çok kalabalık olur."
    ),
    "french": (
        "Où êtes-vous allés cet été ? Les élèves ont préféré la forêt à la plage, où le château était fermé. "
        "À Noël, même les pâtissiers français ont goûté les crêpes très sucrées près de l'église."
    ),
    "german": (
        "Müller und Weiß wohnen in der schönen Straße über dem Fluß. Die Bäume blühen früh, und natürlich "
        "gehen viele Leute spazieren, während die Kühe auf den grünen Wiesen stehen und müde zuhören."
    ),
}
LEGACY = [
    ("japanese", "cp932", "shift_jis"),
    ("japanese", "euc_jp", "euc-jp"),
    ("simplified", "gb18030", "gb2312"),
    ("traditional", "big5", "big5"),
    ("korean", "cp949", "euc-kr"),
    ("russian", "cp1251", "windows-1251"),
    ("russian", "koi8-r", "koi8-r"),
    ("russian", "iso8859-5", "iso-8859-5"),
    ("ukrainian", "cp1251", "windows-1251"),
    ("greek", "cp1253", "windows-1253"),
    ("greek", "iso8859-7", "iso-8859-7"),
    ("hebrew", "cp1255", "windows-1255"),
    ("arabic", "cp1256", "windows-1256"),
    ("thai", "cp874", "tis-620"),
    ("polish", "iso8859-2", "iso-8859-2"),
    ("polish", "cp1250", "windows-1250"),
    ("turkish", "cp1254", "iso-8859-9"),
    ("french", "cp1252", "iso-8859-1"),
    ("german", "cp1252", "windows-1252"),
]
LABELLINGS = ("none", "header", "meta", "latin1_header", "utf8_header", "utf8_meta")


def _page(text: str, codec: str, meta: str | None) -> bytes:
    tag = f'<meta charset="{meta}">' if meta else ""
    return f"<html><head>{tag}<title>x</title></head><body><p>{text}</p></body></html>".encode(
        codec
    )


def _labelled(language: str, codec: str, label: str, labelling: str) -> tuple[bytes, str | None]:
    meta = {"meta": label, "latin1_header": label, "utf8_meta": "utf-8"}.get(labelling)
    header = {"header": label, "latin1_header": "ISO-8859-1", "utf8_header": "utf-8"}.get(labelling)
    return _page(TEXTS[language], codec, meta), header


@pytest.mark.parametrize("labelling", LABELLINGS)
@pytest.mark.parametrize(("language", "codec", "label"), LEGACY)
def test_a_legacy_page_is_read_right_however_it_is_labelled(
    language: str, codec: str, label: str, labelling: str
) -> None:
    """Missing, right, default and wrong labels all give the text that was written."""
    body, header = _labelled(language, codec, label, labelling)

    assert TEXTS[language] in decode(body, header_charset=header, is_html=True).text


@pytest.mark.parametrize(
    ("language", "codec", "wrong"),
    [
        ("russian", "cp1251", "koi8-r"),
        ("traditional", "big5", "gbk"),
        ("greek", "cp1253", "windows-1251"),
        ("thai", "cp874", "windows-1254"),
        ("arabic", "cp1256", "iso-8859-2"),
        ("simplified", "gb18030", "windows-1251"),
    ],
)
def test_a_label_that_the_text_rules_out_is_not_believed(
    language: str, codec: str, wrong: str
) -> None:
    """Single-byte charsets decode everything cleanly, so a clean decoding alone proves little."""
    decoded = decode(_page(TEXTS[language], codec, None), header_charset=wrong, is_html=True)

    assert decoded.source == CharsetSource.DETECTED
    assert TEXTS[language] in decoded.text


@pytest.mark.parametrize(
    ("label", "codec"),
    [
        ("gbk", "gb18030"),
        ("GB2312", "gb18030"),
        ("latin-1x", None),
        ("latin1", "cp1252"),
        ("us-ascii", "cp1252"),
        (" ISO-8859-1 ", "cp1252"),
        ('"utf-8"', "utf-8"),
        ("UTF8", "utf-8"),
        ("shift_jis", "cp932"),
        ("x-sjis", "cp932"),
        ("euc-kr", "cp949"),
        ("ks_c_5601-1987", "cp949"),
        ("big5", "big5hkscs"),
        ("iso-8859-9", "cp1254"),
        ("tis-620", "cp874"),
        ("utf-16", "utf-16-le"),
        ("utf-7", None),
        ("rot13", None),
        ("unicode_escape", None),
        ("", None),
        (None, None),
    ],
)
def test_labels_name_the_charsets_that_browsers_read(label: str | None, codec: str | None) -> None:
    """Aliases follow the WHATWG table; Python's own codec names are no labels."""
    assert codec == codec_of(label)


def test_every_label_has_a_codec_and_every_codec_a_name() -> None:
    """Nothing in the label table is misspelt."""
    for codec in set(CODECS.values()):
        codecs.lookup(codec)

        assert codec_of(name_of(codec)) == codec


@pytest.mark.parametrize(
    ("mark", "codec", "name"),
    [
        (codecs.BOM_UTF8, "utf-8", "utf-8"),
        (codecs.BOM_UTF16_LE, "utf-16-le", "utf-16le"),
        (codecs.BOM_UTF16_BE, "utf-16-be", "utf-16be"),
        (codecs.BOM_UTF32_LE, "utf-32-le", "utf-32le"),
    ],
)
@pytest.mark.parametrize("header", [None, "iso-8859-1", "gbk", "utf-8"])
def test_a_byte_order_mark_beats_every_label(
    mark: bytes, codec: str, name: str, header: str | None
) -> None:
    """The mark decides and is not part of the text."""
    body = mark + TEXTS["japanese"].encode(codec)

    expected = Decoded(text=TEXTS["japanese"], charset=name, source=CharsetSource.BOM)
    assert expected == decode(body, header_charset=header, is_html=True)


def test_half_a_utf16_unit_at_the_end_is_harmless() -> None:
    """A body cut inside a unit loses that unit and nothing else."""
    body = codecs.BOM_UTF16_LE + "päge".encode("utf-16-le") + b"\x41"

    assert decode(body, header_charset=None, is_html=True).text == "päge"


def test_half_a_utf8_character_at_the_end_is_harmless() -> None:
    """A body cut inside a character is still valid UTF-8."""
    decoded = decode("añ日".encode()[:-1], header_charset="latin-1", is_html=True)

    assert Decoded(text="añ", charset="utf-8", source=CharsetSource.VALID_UTF8) == decoded


@pytest.mark.parametrize("header", [None, "iso-8859-1", "windows-1251", "shift_jis"])
def test_valid_utf8_beats_a_wrong_header(header: str | None) -> None:
    """Text of another charset is hardly ever valid UTF-8 by accident."""
    decoded = decode(TEXTS["russian"].encode(), header_charset=header, is_html=True)

    assert (TEXTS["russian"], CharsetSource.VALID_UTF8) == (decoded.text, decoded.source)


def test_iso_2022_jp_is_known_by_its_escapes() -> None:
    """It is ASCII byte for byte, so nothing else would find it."""
    decoded = decode(TEXTS["japanese"].encode("iso2022_jp"), header_charset=None, is_html=True)

    assert (
        Decoded(text=TEXTS["japanese"], charset="iso-2022-jp", source=CharsetSource.ESCAPES)
        == decoded
    )


def test_terminal_colours_are_not_iso_2022_jp() -> None:
    """An escape character alone proves nothing."""
    text = "\x1b[31mred\x1b[0m"

    assert decode(text.encode(), header_charset=None, is_html=False).text == text


@pytest.mark.parametrize("codec", ["utf-16-le", "utf-16-be"])
def test_utf16_without_a_mark_is_known_by_its_nul_bytes(codec: str) -> None:
    """ASCII text in UTF-16 would otherwise be valid UTF-8 full of NUL."""
    decoded = decode("plain words, no mark".encode(codec), header_charset=None, is_html=False)

    assert decoded.text == "plain words, no mark"


def test_a_strong_header_beats_meta() -> None:
    """Header before meta, when both decode cleanly."""
    body = '<meta charset="koi8-r"><p>Привет'.encode("cp1251")

    decoded = decode(body, header_charset="windows-1251", is_html=True)

    assert (decoded.charset, decoded.source) == ("windows-1251", CharsetSource.HEADER)


def test_a_latin1_header_yields_to_a_clean_meta() -> None:
    """A server's default says less than the page; also where the text is too short for the model."""
    decoded = decode(
        '<meta charset="windows-1251"><p>Да'.encode("cp1251"),
        header_charset="ISO-8859-1",
        is_html=True,
    )

    assert ("windows-1251", CharsetSource.META) == (decoded.charset, decoded.source)
    assert decoded.text.endswith("Да")


def test_meta_does_not_count_in_a_comment_or_outside_html() -> None:
    """Only a real `meta` of an HTML page is a declaration."""
    body = '<!-- <meta charset="koi8-r"> --><meta charset="windows-1251"><p>Привет'.encode("cp1251")

    assert decode(body, header_charset=None, is_html=True).charset == "windows-1251"
    assert decode(body, header_charset=None, is_html=False).source is not CharsetSource.META


def test_meta_that_says_utf16_means_utf8() -> None:
    """What could be read as ASCII is not UTF-16."""
    body = b'<meta charset="utf-16">' + "é".encode() * 3 + b"\xff" + b"x" * 2000

    assert decode(body, header_charset=None, is_html=True).charset == "utf-8"


def test_the_xml_declaration_counts_for_xml() -> None:
    """Feeds in legacy charsets declare themselves in their first line."""
    body = '<?xml version="1.0" encoding="windows-1251"?><t>Привет, мир</t>'.encode("cp1251")

    decoded = decode(body, header_charset=None, is_html=False)

    assert "Привет, мир" in decoded.text
    assert decoded.source is CharsetSource.META


def test_one_stray_byte_does_not_change_the_charset() -> None:
    """A long UTF-8 page with one broken byte stays UTF-8, with one mark in it."""
    body = (TEXTS["russian"] * 20).encode() + b"\xff" + b" end"

    decoded = decode(body, header_charset="utf-8", is_html=True)

    assert (decoded.charset, decoded.text.count("\ufffd")) == ("utf-8", 1)


def test_accents_are_not_sacrificed_to_a_utf8_label() -> None:
    """Few bad characters in much markup are still all the accents there are."""
    body = b"<p class='x'>" * 2000 + TEXTS["french"].encode("cp1252")

    assert TEXTS["french"] in decode(body, header_charset="utf-8", is_html=True).text


def test_a_short_text_keeps_its_label() -> None:
    """The model is not asked about a handful of letters."""
    decoded = decode("Привет".encode("koi8-r"), header_charset="koi8-r", is_html=False)

    assert (decoded.text, decoded.source) == ("Привет", CharsetSource.HEADER)


@example(b"")
@example(b"\xff\xfe")
@example(b"\xff\xfe\x00\x00")
@example(b"\x1b$B")
@example(b"\x1b$B\x80")
@example(b"\xed\xa0\x80")
@example(b"\x00\xd8\x00\x00" * 20)
@example(b"\x81" * 100)
@given(st.binary(max_size=400))
def test_decode_is_total(body: bytes) -> None:
    """Any bytes under any label give text that can be encoded again."""
    for header in (None, "gbk", "utf-16", "iso-2022-jp", "nonsense"):
        decoded = decode(body, header_charset=header, is_html=True)

        decoded.text.encode()
        assert codec_of(decoded.charset) is not None or decoded.charset.startswith("utf-32")


@given(st.text(max_size=300), st.sampled_from([None, "utf-8", "latin-1", "gbk"]))
def test_utf8_round_trips_under_any_label(text: str, header: str | None) -> None:
    """What is valid UTF-8 without NUL and escapes is read as such."""
    plain = text.replace("\x00", "").replace("\x1b", "").lstrip("\ufeff")

    assert plain == decode(plain.encode(), header_charset=header, is_html=True).text
