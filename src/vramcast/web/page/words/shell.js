/** Words of the frame around every page. */
export const SHELL_WORDS = {
  "skip": { en: "Skip to the page", zh: "跳到内容" },
  "tagline": { en: "GPU memory before you rent the GPU", zh: "租卡之前先知道显存" },
  "pages": { en: "Pages", zh: "页面" },
  "page.train": { en: "Train", zh: "训练" },
  "page.serve": { en: "Serve", zh: "推理" },
  "title.train": { en: "Memory of a training plan", zh: "训练方案的显存" },
  "title.serve": { en: "Memory of a serving plan", zh: "推理方案的显存" },
  "language": { en: "Language", zh: "语言" },
  "theme": { en: "Colours", zh: "颜色" },
  "theme.auto": { en: "Auto", zh: "自动" },
  "theme.light": { en: "Light", zh: "浅色" },
  "theme.dark": { en: "Dark", zh: "深色" },
  "where.server": {
    en: "vramcast {version}. Answers are computed by this server.",
    zh: "vramcast {version}。由本服务器计算。",
  },
  "where.browser": {
    en: "vramcast {version}. Answers are computed in this browser; nothing leaves it.",
    zh: "vramcast {version}。在浏览器内计算，不发送任何数据。",
  },
  "api": { en: "JSON API", zh: "JSON 接口" },
  "try_again": { en: "Try again", zh: "重试" },
  "failed": { en: "The page cannot be shown: {message}", zh: "无法显示页面：{message}" },
  "starting": {
    en: "Starting Python in this browser; the first answer takes some seconds",
    zh: "正在浏览器中启动 Python，首次回答需要几秒",
  },
  "python.arrives": {
    en: "Python for answers of your own: {fetched} of {whole}", zh: "正在加载用于计算的 Python：{fetched}，共 {whole}",
  },
  "python.starts": { en: "Python starts", zh: "Python 正在启动" },
  "python.failed": { en: "Python could not start in this browser: {message}", zh: "Python 无法在此浏览器中启动：{message}" },
  "loading": { en: "Loading", zh: "加载中" },
};
